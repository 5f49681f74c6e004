//! The rule about requests that every backend refuses for a reason that clients cannot remove: the API key
//! of the gateway, or a rate limit.

use super::backend_failures::RATE_LIMIT_REMEDY;
use super::observation::FleetObservation;
use crate::debounce::VerdictDebounce;
use crate::harm::is_critical_harm;
use crate::verdict::{Evidence, Verdict, VerdictDescription, VerdictScope, VerdictSeverity};
use std::time::Instant;

/// The HTTP statuses with which a backend refuses the API key of a request, or applies a rate limit.
const STATUSES: [u16; 4] = [401, 403, 407, 429];

pub(super) static REFUSED_BY_BACKENDS: VerdictDescription = VerdictDescription {
    name: "refused_by_backends",
    scope: VerdictScope::Fleet,
    is_about_state: false,
    severity: "warning",
    meaning: "The backends refuse requests: clients get 401, 403, 407 or 429.",
    evidence: "In two of three evaluations, five or more requests of 30 s, significantly more than \
               5 %, got one of these statuses from a backend.",
    excluded: "a peer of the backend serves the request (see `backend_failing`)",
    remedy: "The backends expect another key than they get. Set api_key of the backends in the \
             configuration, or give the clients the key of the backends.",
    disproof: "The access log has no request with this status of a backend in the last minute.",
    pages: false,
};

/// The state of the rule between two evaluations.
#[derive(Debug, Default)]
pub(super) struct RefusedByBackends {
    debounce: VerdictDebounce,
    /// The HTTP status of most refused requests.
    status: u16,
}

impl RefusedByBackends {
    /// The verdict of the rule, if its condition holds at `now`.
    pub(super) fn judge(&mut self, fleet: &FleetObservation, now: Instant) -> Option<Verdict> {
        let refused = fleet
            .counts
            .client_errors
            .iter()
            .filter(|(status, _)| STATUSES.contains(status));
        let count: u64 = refused.clone().map(|(_, count)| count).sum();
        self.debounce
            .update(is_critical_harm(count, fleet.counts.requests), now);
        if let Some((status, _)) = refused.max_by_key(|(_, count)| **count) {
            self.status = *status;
        }
        self.debounce.since()?;
        let status = self.status;
        let window = fleet.window_seconds;
        let cause = format!("the backends that were asked answer {status}");
        let remedy = if status == 429 {
            RATE_LIMIT_REMEDY
        } else {
            REFUSED_BY_BACKENDS.remedy
        };
        Some(Verdict {
            evidence: vec![
                Evidence::new("refused_by_backends", count as f64, "requests", window),
                Evidence::new("requests", fleet.counts.requests as f64, "requests", window),
            ],
            remedy: remedy.to_owned(),
            ..REFUSED_BY_BACKENDS.verdict(VerdictSeverity::Warning, Some(cause))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::observation::RecentCounts;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    #[test]
    fn a_401_everywhere_is_named_and_400_not() {
        let mut rule = RefusedByBackends::default();
        let mut now = clock::epoch();
        let mut judge = |status, count, requests| {
            now += Duration::from_secs(5);
            let client_errors = [(status, count)].into();
            let counts = RecentCounts {
                requests,
                client_errors,
                ..RecentCounts::default()
            };
            let fleet = FleetObservation {
                counts,
                ..FleetObservation::default()
            };
            let found = rule.judge(&fleet, now);
            found.map(|it| format!("{} {}", it.severity.as_str(), it.cause.unwrap()))
        };
        for status in [400, 404, 413, 415, 422] {
            assert_eq!(judge(status, 90, 100), None, "{status}");
        }
        assert_eq!(judge(401, 4, 4), None, "few requests");
        assert_eq!(judge(401, 90, 100), None, "a single look is no evidence");
        let named = Some("warning the backends that were asked answer 401");
        assert_eq!(judge(401, 90, 100).as_deref(), named);
        for _ in 0..5 {
            assert_eq!(
                judge(401, 1, 100).as_deref(),
                named,
                "it ends after half a minute"
            );
        }
        assert_eq!(judge(401, 1, 100), None);
    }
}
