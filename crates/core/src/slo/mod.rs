//! Service level objectives: what is promised of requests, and whether one request kept it. The
//! same records that feed the metrics are judged, so the counts are exact: nothing is sampled and
//! nothing is read back from buckets.

mod promise;
#[cfg(test)]
mod tests;

pub use promise::{Condition, Measure, Promise, PromiseError};

use crate::record::{Outcome, RequestRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is promised of the requests for a model, of a tier, or of all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// What metrics call it.
    pub name: String,
    /// Only requests for this model, as clients name it. `None`: for any.
    #[serde(default)]
    pub model: Option<String>,
    /// Only requests of this tier. `None`: of any.
    #[serde(default)]
    pub tier: Option<String>,
    /// The promise: conditions, joined by `and`, and the share of requests that must meet them all,
    /// such as `ttft < 1s and itl_p95 < 50ms for 99 %`.
    #[serde(rename = "objective")]
    #[schemars(with = "String")]
    pub promise: Promise,
}

/// What one request does to an objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It got what was promised.
    Good,
    /// It did not.
    Bad,
    /// It does not count: another model or tier, no inference, or not for us to answer for.
    Excluded,
}

/// The status of a server that is too busy.
const TOO_MANY: u16 = 429;

// === impl Objective ===

impl Objective {
    /// Whether a finished request kept the promise.
    ///
    /// | the request | counts as |
    /// |---|---|
    /// | is no inference, or of another model or tier | excluded |
    /// | was at fault itself: a 4xx | excluded |
    /// | found no room: a 429 or 503 of the gateway, a 429 of the replica | bad |
    /// | failed: a 5xx, an error event, a cut, an abort, a timeout, the gateway's own end | bad |
    /// | was left by its client before the first output | bad if it had waited longer than the limit of `ttft` (streams) or of `e2e`; else excluded |
    /// | was left by its client after that | as what came until then |
    /// | ended well | good if every condition holds |
    ///
    /// A condition on what the request does not have (no stream, no time to first token) is passed
    /// over. A value on the limit is within it, as in a bucket of a histogram.
    pub fn judge(&self, record: &RequestRecord) -> Verdict {
        if record.api.is_none() || !self.is_about(record) {
            return Verdict::Excluded;
        }
        let is_broken = self.promise.is_broken_by(record);
        let has_begun = record.timings.first_output.is_some();
        match record.outcome {
            Outcome::Ok | Outcome::Cancelled if is_broken => Verdict::Bad,
            Outcome::Ok => Verdict::Good,
            Outcome::Cancelled if has_begun => Verdict::Good,
            Outcome::Cancelled => Verdict::Excluded,
            Outcome::ClientError if record.status != Some(TOO_MANY) => Verdict::Excluded,
            _ => Verdict::Bad,
        }
    }

    fn is_about(&self, record: &RequestRecord) -> bool {
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        is(&self.model, record.model.name()) && is(&self.tier, record.tier.as_str())
    }
}

// === impl Verdict ===

impl Verdict {
    /// The verdicts that are counted.
    pub const COUNTED: [Self; 2] = [Self::Good, Self::Bad];

    /// The name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Excluded => "excluded",
        }
    }
}
