//! Service level objectives: their definition, and the evaluation of each request.
//!
//! Every record is evaluated, so the counts are exact: there is no sampling, and no estimate from histogram
//! buckets.

mod definition;
#[cfg(test)]
mod tests;

pub use definition::{
    LatencyMeasure, ObjectiveCondition, ObjectiveDefinition, ObjectiveParseError,
};

use crate::record::{Outcome, RequestRecord};
use std::time::Duration;
use tokenweir_protocol::{named_enum, settings_entry};
use tokenweir_routing::saturation::LatencyLimits;

settings_entry! {
    /// A service level objective for the requests of a model or tier, or for all requests.
    pub struct Objective {
        /// Name of the objective, the value of the metric label.
        pub name: String,
        /// Only requests for this model count, by the name that clients use. `null`: any model.
        pub model: Option<String>,
        /// Only requests of this tier count. `null`: any tier.
        pub tier: Option<String>,
        /// The conditions, joined by `and`, and the share of requests that must meet all of them, such
        /// as `ttft < 1s and itl_p95 < 50ms for 99 %`.
        #[serde(rename = "objective")]
        #[schemars(with = "String")]
        pub definition: ObjectiveDefinition,
    }
}

named_enum! {
    /// Whether a request met an objective.
    #[derive(Hash)]
    pub enum ObjectiveResult {
        /// The request met the objective.
        Good = "good",
        /// The request did not meet the objective.
        Bad = "bad",
        /// The request does not count: it has another model or tier, is no inference request, or had an error
        /// of the client.
        Excluded = "excluded",
    }
}

impl Objective {
    /// Evaluates a finished request.
    ///
    /// | request | result |
    /// |---|---|
    /// | no inference, or another model or tier | excluded |
    /// | client error: a 4xx other than 429 | excluded |
    /// | 429 of the gateway for a limit of the tenant, the key or the client address | excluded |
    /// | no capacity: any other 429 or a 503 of the gateway, a 429 of the backend | bad |
    /// | failure: 5xx, error event, truncation, abort, timeout, shutdown of the gateway | bad |
    /// | client disconnect before output, past a limit of `ttft` (streams) or `e2e` | bad |
    /// | client disconnect before output, within these limits | excluded |
    /// | client disconnect during output | good if every condition holds until then |
    /// | success | good if every condition holds |
    ///
    /// A condition on a value that the request does not have, such as `ttft` without a stream, is
    /// ignored. A value equal to the limit meets it, as in a histogram bucket.
    pub fn judge(&self, record: &RequestRecord) -> ObjectiveResult {
        if record.api.is_none() || !self.applies_to(record) {
            return ObjectiveResult::Excluded;
        }
        let is_violated = self.definition.is_violated_by(record);
        let has_output = record.timings.first_output.is_some();
        match record.outcome {
            Outcome::Ok | Outcome::Cancelled if is_violated => ObjectiveResult::Bad,
            Outcome::Ok => ObjectiveResult::Good,
            Outcome::Cancelled if has_output => ObjectiveResult::Good,
            // A backend answered with 429. With a refusal, the client exceeded a limit of the gateway.
            Outcome::ClientError if record.status == Some(429) && record.refusal.is_none() => {
                ObjectiveResult::Bad
            }
            Outcome::Cancelled | Outcome::ClientError => ObjectiveResult::Excluded,
            _ => ObjectiveResult::Bad,
        }
    }

    /// Whether the objective limits a time, such as the TTFT, that this request has.
    pub fn limits_time_of(&self, record: &RequestRecord) -> bool {
        let mut limits = self.definition.limits();
        limits.any(|(measure, _)| measure.observed_seconds(record).is_some())
    }

    /// The TTFT limit for a request. `None`: the objective has no such limit, or does not apply to the request.
    pub fn ttft_limit(&self, record: &RequestRecord) -> Option<Duration> {
        if !self.applies_to(record) {
            return None;
        }
        let mut limits = self.definition.limits();
        let (_, limit) = limits.find(|(measure, _)| *measure == LatencyMeasure::Ttft)?;
        Some(limit)
    }

    /// Whether the objective applies to requests for this model.
    fn is_for(&self, model: Option<&str>) -> bool {
        self.model.as_deref().is_none_or(|own| model == Some(own))
    }

    fn applies_to(&self, record: &RequestRecord) -> bool {
        let matches = |expected: &Option<String>, actual: &str| {
            expected.as_ref().is_none_or(|expected| expected == actual)
        };
        let is_of_model = matches(&self.model, record.model.known_name())
            || record
                .notes
                .requested_model()
                .is_some_and(|name| matches(&self.model, name));
        is_of_model && matches(&self.tier, record.tier.as_str())
    }
}

/// The lowest limits of the TTFT and of the time per output token that objectives set for a model. A limit for
/// a quantile of the inter-token latency counts as a limit of the mean, which is shorter.
pub fn latency_limits(objectives: &[Objective], model: Option<&str>) -> LatencyLimits {
    let mut limits = LatencyLimits::default();
    let own = objectives
        .iter()
        .filter(|objective| objective.is_for(model));
    for (measure, limit) in own.flat_map(|objective| objective.definition.limits()) {
        let least = match measure {
            LatencyMeasure::Ttft => &mut limits.ttft,
            LatencyMeasure::Tpot
            | LatencyMeasure::ItlP50
            | LatencyMeasure::ItlP95
            | LatencyMeasure::ItlP99 => &mut limits.tpot,
            _ => continue,
        };
        let limit = limit.as_secs_f64();
        *least = Some(least.map_or(limit, |least| least.min(limit)));
    }
    limits
}

impl ObjectiveResult {
    /// The values of the label `result`.
    pub const COUNTED: [Self; 2] = [Self::Good, Self::Bad];
}
