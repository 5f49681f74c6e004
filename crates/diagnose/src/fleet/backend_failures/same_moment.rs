//! Detects connections to several backends that break at the same moments although no engine has restarted. The
//! cause is then between the gateway and the backends.

use super::{BackendAttempts, BackendFailures, COMMON_REMEDY, LONG_WINDOW, SAME_MOMENT, WINDOW};
use crate::fleet::observation::AttemptCounts;
use crate::rule::prelude::*;
use std::collections::BTreeMap;
use std::time::Instant;

/// The kinds of failure in which a connection breaks or cannot be opened.
const BROKEN: [&str; 3] = ["connect_error", "connection_reset", "truncated_cut"];

/// The most frequent failure, without the state of the backend.
fn failures_of(verdict: &Verdict) -> String {
    let cause = verdict.cause_or_meaning();
    cause.split("; ").next().unwrap_or(cause).to_owned()
}

impl BackendFailures {
    /// If all backends fail in the same way, adds to each verdict that the cause is common. Details of single
    /// backends, such as an ejection, are dropped from the verdicts.
    pub(super) fn name_common_cause(&self, matches: &mut [Verdict], now: Instant) {
        let Some(first) = matches.first().map(failures_of) else {
            return;
        };
        if matches.iter().any(|verdict| failures_of(verdict) != first) {
            return;
        }
        let is_same = matches
            .iter()
            .all(|verdict| verdict.cause == matches[0].cause);
        let clause = if self.break_together(now) {
            SAME_MOMENT
        } else {
            "all backends fail alike, so the cause is common to them"
        };
        for verdict in matches {
            if !is_same {
                verdict.cause = Some(first.clone().into());
            }
            verdict.add_to_cause(clause);
            verdict.remedy = format!("{COMMON_REMEDY} {}", verdict.remedy);
        }
    }

    /// Whether the connections of the last minute broke at a few moments, and at most of these moments at
    /// several backends.
    fn break_together(&self, now: Instant) -> bool {
        let has_restarted = |attempts: &BackendAttempts| {
            let at = attempts.restarted_at;
            at.is_some_and(|at| now.saturating_duration_since(at) < LONG_WINDOW)
        };
        if self.backends.values().any(has_restarted) {
            return false;
        }
        // The number of backends with broken connections, by the time of the evaluation.
        let mut moments: BTreeMap<Instant, usize> = BTreeMap::new();
        for backend in self.backends.values() {
            for (at, counts) in backend.recent.times().zip(backend.recent.iter()) {
                if now.saturating_duration_since(at) < WINDOW {
                    *moments.entry(at).or_default() += usize::from(counts.has_broken());
                }
            }
        }
        let broken = moments.values().filter(|broken| **broken > 0).count();
        let shared = moments.values().filter(|broken| **broken > 1).count();
        let quiet = moments.len() - broken;
        // If failures never pause, several backends fail in each evaluation by chance.
        shared > 0 && 3 * shared >= 2 * broken && 2 * quiet >= broken
    }
}

impl BackendAttempts {
    pub(super) fn note_restarts(&mut self, restarts: u64, now: Instant) {
        let before = self.restarts.replace(restarts);
        if before.is_some_and(|before| restarts > before) {
            self.restarted_at = Some(now);
        }
    }
}

impl AttemptCounts {
    fn has_broken(&self) -> bool {
        let mut failures = self.failures.iter();
        failures.any(|failure| failure.count > 0 && BROKEN.contains(&failure.kind))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AttemptFailures, FleetObservation, tests::backend};
    use super::*;
    use std::time::Duration;
    use tokenweir_protocol::clock;
    use tokenweir_routing::resilience::Availability;

    /// The causes after these evaluations. Each evaluation is given as the number of responses, of eight, that
    /// each of two backends cuts, and the number of restarts so far.
    fn causes(steps: &[u64], restarts: u64) -> Vec<String> {
        let mut rule = BackendFailures::default();
        let mut now = clock::epoch();
        let mut found: Vec<Verdict> = Vec::new();
        for count in steps {
            now += Duration::from_secs(5);
            let failure = AttemptFailures {
                kind: "truncated_cut",
                count: *count,
                ..AttemptFailures::default()
            };
            let counts = AttemptCounts {
                attempts: 8,
                failures: vec![failure],
            };
            let mut backends = vec![backend("a", counts.clone()), backend("b", counts)];
            backends[1].state = Availability::Ejected;
            backends[1].restarts = if now > clock::epoch() + Duration::from_secs(5) {
                restarts
            } else {
                0
            };
            let fleet = FleetObservation {
                backends,
                ..FleetObservation::default()
            };
            found = rule.judge(&fleet, |_| false, now);
        }
        let causes = found.into_iter().filter_map(|verdict| verdict.cause);
        causes.map(Into::into).collect()
    }

    #[test]
    fn breaks_at_the_same_moments_have_one_cause() {
        let together = "most of its failures: it cuts its responses; all at the same moment: something between the \
                        gateway and the backends (network, firewall, mesh, proxy)";
        let bursts = [0, 4, 0, 4, 0, 0, 4, 0];
        assert_eq!(causes(&bursts, 0), [together; 2]);
        let alike = "most of its failures: it cuts its responses; all backends fail alike, so the cause is common to them";
        assert_eq!(causes(&bursts, 1), [alike; 2], "an engine has restarted");
        assert_eq!(causes(&[2; 8], 0), [alike; 2], "they never pause");
    }
}
