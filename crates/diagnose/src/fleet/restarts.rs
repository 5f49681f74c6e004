//! The rule about a backend that repeatedly restarts, or repeatedly goes down and comes up again.

use super::observation::FleetObservation;
use crate::fatal_requests::FatalRequests;
use crate::recent::Recent;
use crate::rule::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_routing::resilience::Availability;

/// Length of the window whose interruptions are counted. An interruption is a restart of the process of the
/// backend, or a change of its state to down.
const WINDOW: Duration = Duration::from_mins(10);
/// Minimum number of interruptions in the window.
const MIN_INTERRUPTIONS: usize = 3;
/// Minimum number of backends with interruptions in the window, for a common cause.
const MIN_ROLLED: usize = 2;
/// Minimum number of interruptions of all backends if a kind of request crashes engines.
const MIN_FATAL: usize = 2;
/// The verdict ends when the last interruption is older than this time plus twice the mean time between two
/// interruptions.
const CLEAR_AFTER: Duration = Duration::from_secs(20);

pub(super) static BACKEND_RESTARTING: DiagnosisRule = DiagnosisRule {
    name: "backend_restarting",
    severity: "warning, critical if more than 5 % of requests fail",
    meaning: "The backend fails and comes back again and again.",
    evidence: "In ten minutes the process of the backend restarted three times, or the backend \
               went down three times. Once is enough if, of the requests of one client or of one kind, three or more, \
               and three quarters, ended with their backend in three minutes, and few others did.",
    remedy: "Read the end of the log before each restart. Usual causes are a lack of memory, a \
             request that crashes the engine, and a strict liveness probe. Set the weight of the \
             backend to 0 until it stays up.",
    disproof: "An operator or a deployment restarts the backend on purpose.",
    ..DiagnosisRule::ENGINE
};

/// The interruptions of all backends, and the requests that can be their cause.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    backends: HashMap<BackendId, Interruptions>,
    requests: FatalRequests,
}

#[derive(Debug, Default)]
struct Interruptions {
    /// The times of the restarts of the process in the window, the oldest first.
    restarts: Recent<()>,
    /// The times at which the backend went down in the window, the oldest first. Most restarts also appear
    /// here, because the backend goes down.
    downs: Recent<()>,
    /// The number of restarts and the state at the last evaluation. `None`: no evaluation yet.
    last: Option<(u64, Availability)>,
    /// The number of engine switches of the metrics page at the last evaluation.
    switches: u64,
}

impl Restarts {
    /// Returns a verdict for each backend that matches [`BACKEND_RESTARTING`] at `now`.
    pub(super) fn judge(&mut self, fleet: &FleetObservation, now: Instant) -> Vec<Verdict> {
        self.backends
            .retain(|id, _| fleet.backends.iter().any(|backend| backend.id == *id));
        for backend in &fleet.backends {
            let interruptions = self.backends.entry(backend.id.clone()).or_default();
            if backend.engine_switches > interruptions.switches {
                // Several engines answer in turn behind this address, so counters do not show restarts.
                *interruptions = Interruptions::default();
                interruptions.switches = backend.engine_switches;
            }
            interruptions.observe(backend.restarts, backend.state, now);
        }
        let requests = self.requests.observe(&fleet.request_ends, now);
        let severity = VerdictSeverity::of_harm(fleet.counts.failed, fleet.counts.requests);
        let found = BACKEND_RESTARTING.verdict(severity);
        let common = self.common_cause(&found, requests, fleet.backends.len());
        let is_fatal = |it: &Verdict| it.origin == Origin::FatalRequests;
        let least = if common.as_ref().is_some_and(is_fatal) {
            1
        } else {
            MIN_INTERRUPTIONS
        };
        let mut matches = Vec::new();
        for backend in &fleet.backends {
            let Some(interruptions) = self.backends.get(&backend.id) else {
                continue;
            };
            let Some((count, own)) = interruptions.repeated(least, now) else {
                continue;
            };
            let evidence =
                Evidence::new("interruptions", count as f64, "times", WINDOW.as_secs_f64());
            let found = common.clone().unwrap_or_else(|| found.clone().because(own));
            matches.push(found.about(&backend.id).with([evidence]));
        }
        matches
    }

    /// The verdict with its cause if several backends are interrupted. `requests`: the requests that end engines.
    fn common_cause(
        &self,
        found: &Verdict,
        requests: Option<String>,
        backends: usize,
    ) -> Option<Verdict> {
        let interrupted = self.backends.values().filter(|known| known.count() > 0);
        let interrupted = interrupted.count();
        let total: usize = self.backends.values().map(Interruptions::count).sum();
        if let Some(text) = requests
            && total >= MIN_FATAL
        {
            let found = found.clone().because(text).remedy(
                "Block these requests, and do not send them again: look for a rare \
                 parameter, a long prompt or media in them, and for the engine's last \
                 log lines before its end.",
            );
            return Some(found.at(Origin::FatalRequests));
        }
        let is_rollout = interrupted >= MIN_ROLLED && 3 * interrupted >= 2 * backends;
        let cause = "several backends restart one after another: cannot tell whether a rollout or \
                     a supervisor ends them without a drain, or a fault that they share";
        let remedy = "Drain each backend before its restart (tokenweir drain NAME), and wait \
                      until it is ready again before the next one.";
        is_rollout.then(|| found.clone().because(cause).remedy(remedy))
    }
}

impl Interruptions {
    fn count(&self) -> usize {
        self.restarts.len().max(self.downs.len())
    }

    fn observe(&mut self, restarts: u64, state: Availability, now: Instant) {
        self.restarts.forget(WINDOW, now);
        self.downs.forget(WINDOW, now);
        if let Some((known, before)) = self.last.replace((restarts, state)) {
            let new = restarts.saturating_sub(known).min(MIN_INTERRUPTIONS as u64);
            (0..new).for_each(|_| self.restarts.add((), now));
            if state == Availability::Down && before != Availability::Down {
                self.downs.add((), now);
            }
        }
    }

    /// The number of interruptions in the window, and their kind as text. `None`: there were fewer than `least`
    /// interruptions, or the last one is too long ago.
    fn repeated(&self, least: usize, now: Instant) -> Option<(usize, &'static str)> {
        let (times, cause) = if self.restarts.len() >= least {
            (
                &self.restarts,
                "its process ends and starts again (crash loop)",
            )
        } else {
            (&self.downs, "it is down and up in turn")
        };
        if times.len() < least {
            return None;
        }
        let first = times.times().next()?;
        let last = times.times().next_back()?;
        let spans = u32::try_from(times.len()).ok()?.saturating_sub(1).max(1);
        let usual = last.saturating_duration_since(first) / spans;
        let age = now.saturating_duration_since(last);
        // Requests that crash engines remain a cause as long as they are in their window.
        let is_recent = least < MIN_INTERRUPTIONS || age < usual * 2 + CLEAR_AFTER;
        is_recent.then_some((times.len(), cause))
    }
}

#[cfg(test)]
mod tests {
    use super::super::observation::{self, FleetBackend};
    use super::*;
    use tokenweir_protocol::clock;

    /// Evaluates the rule every 5 s for ten minutes. Returns the seconds at which its condition holds.
    /// `at(second)`: the number of restarts and the state of the backend at this second.
    fn named(at: impl Fn(u64) -> (u64, Availability)) -> Vec<u64> {
        let mut rule = Restarts::default();
        let start = clock::epoch();
        let mut is_named = |second: &u64| {
            let (restarts, state) = at(*second);
            let backend = FleetBackend {
                restarts,
                ..observation::tests::backend("gpu-0", state)
            };
            let fleet = FleetObservation {
                backends: vec![backend],
                ..FleetObservation::default()
            };
            !rule
                .judge(&fleet, start + Duration::from_secs(*second))
                .is_empty()
        };
        (0..600)
            .step_by(5)
            .filter(|second| is_named(second))
            .collect()
    }

    #[test]
    fn the_verdict_begins_at_the_third_outage() {
        let available = Availability::Available;
        let crashes = named(|second| ((second / 40).min(5), available));
        assert_eq!((crashes.first(), crashes.last()), (Some(&120), Some(&295)));
        let flaps = named(|second| {
            let is_down = second % 60 == 0 && (1..=240).contains(&second);
            (
                0,
                if is_down {
                    Availability::Down
                } else {
                    available
                },
            )
        });
        assert_eq!((flaps.first(), flaps.last()), (Some(&180), Some(&375)));
        assert_eq!(
            named(|second| ((second / 250).min(2), available)),
            [0_u64; 0]
        );
        assert_eq!(
            named(|_| (7, Availability::Down)),
            [0_u64; 0],
            "one long outage"
        );
    }
}
