//! The settings of admission control, and how long a request may wait.

use super::gate::{Standing, gated_until};
use http::HeaderName;
use std::time::{Duration, Instant};
use tokenweir_request::record::RequestRecord;
use tokenweir_request::slo::{self, Objective, ObjectiveResult};
use tokenweir_routing::admission::{PriorityClasses, longest_wait};
use tokenweir_routing::saturation::SaturationThresholds;

/// Settings of admission control: when requests wait, the maximum number of waiting requests, and
/// the maximum wait.
#[derive(Debug, Clone)]
pub struct AdmissionSettings {
    /// The thresholds at which a backend counts as full.
    pub thresholds: SaturationThresholds,
    /// Maximum number of waiting requests.
    pub queue_capacity: usize,
    /// Maximum wait of a request, after which the gateway rejects the request.
    pub max_wait: Duration,
    /// Maximum wait of a request whose model no backend can serve. 0: such a request does not wait.
    pub max_backend_wait: Duration,
    /// The objectives of `slos`. The gateway refuses a stream that cannot meet the TTFT limit of its objective.
    pub objectives: Vec<Objective>,
    /// The priority classes: tiers in order of precedence.
    pub classes: PriorityClasses,
    /// The header whose value is the tenant of a request without an API key. `None`: no header is
    /// configured.
    pub tenant_header: Option<HeaderName>,
}

/// How long a request may wait in the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaitLimit {
    pub ends_at: Instant,
    /// The end of the gate's part of the wait. `None`: the gate does not hold the request.
    pub gated_until: Option<Instant>,
    /// The TTFT limit of the objective that the request misses after this wait. `None`: it has none.
    pub objective: Option<Duration>,
}

/// A request that is about to wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedWait {
    /// Whether no backend can serve the model of the request.
    pub(super) is_without_backend: bool,
    /// The TTFT of the request in seconds without a wait.
    pub(super) predicted_ttft: f64,
    pub(super) standing: Standing,
}

impl AdmissionSettings {
    /// The maximum wait of a stream for another backend if admission control is disabled.
    pub(super) const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(30);

    /// Whether requests wait while no backend can serve their model.
    pub(super) const fn waits_for_backend(&self) -> bool {
        !self.max_backend_wait.is_zero()
    }

    /// The thresholds for a model. `model`: the name that clients use.
    pub(super) fn thresholds_of(&self, model: Option<&str>) -> SaturationThresholds {
        SaturationThresholds {
            limits: slo::latency_limits(&self.objectives, model),
            ..self.thresholds
        }
    }

    /// Whether an ended request missed an objective for its times. `None`: none applies to it.
    pub(super) fn has_missed_objective(&self, record: &RequestRecord) -> Option<bool> {
        let timed = self.objectives.iter();
        let timed = timed.filter(|objective| objective.limits_time_of(record));
        let results = timed.map(|objective| objective.judge(record));
        let judged = results.filter(|result| *result != ObjectiveResult::Excluded);
        judged.map(|result| result == ObjectiveResult::Bad).max()
    }

    /// How long a request may wait.
    pub(super) fn wait_limit(
        &self,
        record: &RequestRecord,
        wait: &AskedWait,
        now: Instant,
    ) -> WaitLimit {
        let standing = wait.standing;
        if wait.is_without_backend {
            let left = self
                .max_backend_wait
                .saturating_sub(record.timings.without_backend);
            return WaitLimit {
                ends_at: now + left,
                gated_until: gated_until(standing, now, now + left),
                objective: None,
            };
        }
        let ends_at = now + self.max_wait;
        let limits = self
            .objectives
            .iter()
            .filter_map(|objective| objective.ttft_limit(record));
        let objective = if record.options.stream {
            limits.min()
        } else {
            None
        };
        let from = record.timings.received.unwrap_or(now);
        let late_at =
            objective.map(|limit| (from + longest_wait(limit, wait.predicted_ttft)).max(now));
        let late_at = late_at.filter(|at| *at < ends_at);
        match late_at {
            // A request that the gate holds will miss its objective anyway, and admitting it would make other
            // requests miss theirs.
            Some(_) if standing == Standing::Held => WaitLimit {
                ends_at,
                gated_until: Some(ends_at),
                objective,
            },
            Some(late_at) => WaitLimit {
                ends_at: late_at,
                gated_until: gated_until(standing, now, late_at),
                objective,
            },
            None => WaitLimit {
                ends_at,
                gated_until: gated_until(standing, now, ends_at),
                objective: None,
            },
        }
    }
}
