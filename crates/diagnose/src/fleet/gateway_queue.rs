//! The rule about requests that wait in the gateway because all backends are full, or because the gate of
//! admission holds them.

use super::observation::{FleetObservation, first_of};
use crate::debounce::VerdictDebounce;
use crate::rule::prelude::*;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;

/// The setting that is assumed to limit the backends if no other one is known.
const MAX_IN_FLIGHT: &str = "admission.max_in_flight";
/// Minimum number of requests that wait now, or of requests that ended slowly because they waited.
const MIN_REQUESTS: usize = 3;
/// Time in the queue, in seconds, that harms a client: the default of `slow.ttft`.
const HARMFUL_WAIT_SECONDS: f64 = 2.0;
/// Minimum share of requests that were slow because they waited in the queue. The live page and `tokenweir top`
/// show a share of at least this value in yellow.
const MIN_SHARE: f64 = 0.02;

pub(super) static GATEWAY_QUEUE: DiagnosisRule = DiagnosisRule {
    name: "gateway_queue",
    severity: "warning, critical if more than 5 % of requests were slow because they waited",
    meaning: "Requests wait long in the gateway, because no backend has capacity for them.",
    evidence: "In two of three evaluations three or more requests wait in the gateway, one of them \
               for 2 s; or of the requests of 30 s three or more, and at least 2 %, were slow \
               because they waited there. The cause counts the backends that get no requests. It names \
               `admission.max_in_flight` instead if half of those that get requests have reached \
               it without a queue in their engines; or the number of sessions that fit, if `sessions` holds the \
               requests.",
    excluded: "`no_capacity`, `shedding` or `backend_awaited` holds",
    remedy: "Undrain or restart the backends that get no requests. If all get requests, raise the \
             limit that a verdict about the engines names, or add backends.",
    disproof: "tokenweir_queue_requests is 0 in every sample of the last minute.",
    ..DiagnosisRule::FLEET
};

/// The state of the rule between two evaluations.
#[derive(Debug, Default)]
pub(super) struct GatewayQueue {
    debounce: VerdictDebounce,
    /// The last verdict with its cause. `None`: no verdict holds.
    last: Option<Verdict>,
    members: Members,
}

/// The backends of the last evaluation, and those that joined and left recently.
#[derive(Debug, Default)]
struct Members {
    known: BTreeSet<BackendId>,
    /// The backends that left in the last [`LEFT_WITHIN`], the oldest first.
    left: Vec<LeftBackend>,
    joined: Vec<Instant>,
}

#[derive(Debug)]
struct LeftBackend {
    id: BackendId,
    at: Instant,
}

/// Time after which a backend that left no longer explains why the others are full.
const LEFT_WITHIN: Duration = Duration::from_mins(10);
/// Maximum number of backends that the cause names.
const MAX_NAMED: usize = 3;

/// The remedy for requests that wait because of the gate of admission.
const GATE_REMEDY: &str = "Add backends, store KV in fp8 (--kv-cache-dtype), or give vLLM more of the GPU's memory \
                           (--gpu-memory-utilization). admission.max_wait limits the wait.";

impl GatewayQueue {
    /// The verdict of the rule, if its condition holds at `now`. `is_named`: whether another verdict
    /// already covers the waiting requests.
    pub(super) fn judge(
        &mut self,
        fleet: &FleetObservation,
        is_named: bool,
        now: Instant,
    ) -> Option<Verdict> {
        self.members.observe(fleet, now);
        let left = self.left_clause(now);
        let wait = fleet.longest_wait_seconds.unwrap_or_default();
        let is_waiting = fleet.queued >= MIN_REQUESTS && wait >= HARMFUL_WAIT_SECONDS;
        let delayed = fleet.counts.delayed as f64;
        let was_waiting =
            delayed >= (MIN_REQUESTS as f64).max(MIN_SHARE * fleet.counts.requests as f64);
        let is_found = !is_named && (is_waiting || was_waiting);
        self.debounce.update(is_found, now);
        if self.debounce.since().is_none() {
            self.last = None;
        }
        if is_named || self.debounce.since().is_none() {
            return None;
        }
        // The cause is determined again only while the condition is found, because later load does not explain
        // earlier waits. The cause `admission.max_in_flight` is kept, because the number of backends at this
        // limit changes.
        let last = self.last.take();
        let keep = |last: &Verdict| !is_found || last.origin == Origin::Setting;
        let severity = VerdictSeverity::of_harm(fleet.counts.delayed, fleet.counts.requests);
        let found = match last.filter(keep) {
            Some(last) => last,
            None => because_of_queue(GATEWAY_QUEUE.verdict(severity), fleet, left.as_deref()),
        };
        self.last = Some(found.clone());
        let evidence = [
            Evidence::new("waiting_in_gateway", fleet.queued as f64, "requests", 0.0),
            Evidence::new("longest_wait", wait, "s", 0.0),
            Evidence::new("slow_by_wait", delayed, "requests", fleet.window_seconds),
        ];
        Some(Verdict {
            severity,
            ..found.with(evidence)
        })
    }

    /// The number and names of the backends that are gone, as text. `None`: none is gone, or as many others
    /// have joined.
    pub(super) fn left_clause(&self, now: Instant) -> Option<String> {
        self.members.left_clause(now)
    }
}

impl Members {
    fn observe(&mut self, fleet: &FleetObservation, now: Instant) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < LEFT_WITHIN;
        self.left.retain(|backend| is_recent(backend.at));
        self.joined.retain(|at| is_recent(*at));
        let current: BTreeSet<BackendId> = fleet.backends.iter().map(|it| it.id.clone()).collect();
        let before = std::mem::replace(&mut self.known, current);
        if before.is_empty() {
            return;
        }
        for id in self.known.difference(&before) {
            let earlier = self.left.iter().position(|backend| backend.id == *id);
            match earlier {
                Some(index) => drop(self.left.remove(index)),
                None => self.joined.push(now),
            }
        }
        for id in before.difference(&self.known) {
            let id = id.clone();
            self.left.push(LeftBackend { id, at: now });
        }
    }

    fn left_clause(&self, now: Instant) -> Option<String> {
        let gone = self.left.len().saturating_sub(self.joined.len());
        if gone == 0 {
            return None;
        }
        let first = self.left.first()?;
        let age = now.saturating_duration_since(first.at).as_secs();
        let before = self.known.len() + gone;
        let names = self.left.iter().map(|backend| backend.id.as_str());
        let names = first_of(names, MAX_NAMED, ", ");
        Some(format!(
            "discovery or a reload removed {gone} of {before} backends in the last {age} s \
             ({names})"
        ))
    }
}

/// Adds to the verdict why requests wait. `left`: a text about the backends that are gone.
fn because_of_queue(found: Verdict, fleet: &FleetObservation, left: Option<&str>) -> Verdict {
    if let Some(reason) = &fleet.held_because {
        let found = found.because(reason.clone()).at(Origin::Excluded);
        return found.remedy(GATE_REMEDY);
    }
    let up = fleet.up();
    let limited = fleet.limited_backends;
    // No requests wait in the engines of the limited backends, so these engines have capacity left.
    if limited > 0 && 2 * limited >= up {
        let name = fleet.limited_by.unwrap_or(MAX_IN_FLIGHT);
        let setting = fleet.setting(name);
        let value = setting.map_or_else(String::new, |setting| format!(" ({})", setting.value));
        let cause = format!(
            "{limited} of {up} backends have as many requests as {name}{value} allows, and no \
             queue in their engines"
        );
        return found.because(cause).at(Origin::Setting).remedy(
            "Raise this setting until the engines have a short queue, or remove it for engines \
             with metrics.",
        );
    }
    if let Some(incomplete) = fleet.incomplete() {
        return found.because(incomplete).at(Origin::Excluded);
    }
    let full = "every backend that serves them is full";
    match left {
        Some(left) => found.because(format!("{full}: {left}")),
        None => found.because(full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::observation::{self, RecentCounts};
    use tokenweir_protocol::clock;
    use tokenweir_routing::resilience::Availability;

    #[test]
    fn waiting_requests_give_a_verdict_unless_covered() {
        let mut rule = GatewayQueue::default();
        let mut now = clock::epoch();
        let mut judge = |queued, wait: f64, delayed, is_named| {
            now += Duration::from_secs(5);
            let fleet = FleetObservation {
                queued,
                longest_wait_seconds: Some(wait),
                counts: RecentCounts {
                    delayed,
                    requests: 100,
                    ..RecentCounts::default()
                },
                ..FleetObservation::default()
            };
            let found = rule.judge(&fleet, is_named, now);
            found.map(|it| format!("{} {}", it.severity.as_str(), it.cause.unwrap()))
        };
        assert_eq!(judge(9, 1.5, 0, false), None, "a short wait harms nobody");
        assert_eq!(
            judge(9, 2.5, 0, false),
            None,
            "a single look is no evidence"
        );
        assert_eq!(judge(9, 2.5, 0, true), None);
        assert_eq!(
            judge(0, 0.0, 3, false).as_deref(),
            Some("warning every backend that serves them is full")
        );
        assert_eq!(
            judge(5, 3.0, 40, false).as_deref(),
            Some("critical every backend that serves them is full")
        );
        assert_eq!(judge(5, 3.0, 40, true), None, "requests are refused, too");
        for _ in 0..4 {
            assert!(
                judge(0, 0.0, 2, false).is_some(),
                "it ends after half a minute"
            );
        }
        assert_eq!(judge(0, 0.0, 2, false), None);
    }

    #[test]
    fn backends_that_left_are_named() {
        let mut rule = GatewayQueue::default();
        let mut now = clock::epoch();
        let mut judge = |names: &[&str]| {
            now += Duration::from_secs(5);
            let backends = names.iter();
            let backends =
                backends.map(|name| observation::tests::backend(name, Availability::Available));
            let fleet = FleetObservation {
                backends: backends.collect(),
                queued: 9,
                longest_wait_seconds: Some(9.0),
                ..FleetObservation::default()
            };
            let found = rule.judge(&fleet, false, now)?;
            found.cause.map(String::from)
        };
        let full = "every backend that serves them is full";
        judge(&["gpu-0", "gpu-1", "gpu-2"]);
        assert_eq!(judge(&["gpu-0", "gpu-1", "gpu-2"]).as_deref(), Some(full));
        judge(&["gpu-0"]);
        let left = "discovery or a reload removed 2 of 3 backends in the last 5 s (gpu-1, gpu-2)";
        assert_eq!(judge(&["gpu-0"]), Some(format!("{full}: {left}")));
        let back = judge(&["gpu-0", "gpu-1", "gpu-2"]);
        assert_eq!(back.as_deref(), Some(full), "they are back");
        let others = judge(&["gpu-3", "gpu-4", "gpu-5"]);
        assert_eq!(others.as_deref(), Some(full), "others have replaced them");
    }

    #[test]
    fn the_gate_names_what_it_waits_for() {
        let mut rule = GatewayQueue::default();
        let mut now = clock::epoch();
        let mut judge = |held_because: Option<&str>| {
            now += Duration::from_secs(5);
            let fleet = FleetObservation {
                queued: 26,
                longest_wait_seconds: Some(9.0),
                held_because: held_because.map(str::to_owned),
                ..FleetObservation::default()
            };
            rule.judge(&fleet, false, now)
        };
        judge(Some("14 of 40 sessions fit into the KV caches"));
        let found = judge(Some("14 of 41 sessions fit into the KV caches")).unwrap();
        let expected = "14 of 41 sessions fit into the KV caches";
        assert_eq!(found.cause.as_deref(), Some(expected));
        assert_eq!(found.remedy, GATE_REMEDY);
        assert_eq!(judge(None).unwrap().remedy, GATEWAY_QUEUE.remedy);
    }

    #[test]
    fn max_in_flight_is_named_with_free_engines() {
        let mut rule = GatewayQueue::default();
        let start = clock::epoch();
        for (seconds, limited_backends, queued) in [(0, 1, 9), (5, 1, 9), (10, 0, 9), (15, 0, 0)] {
            let fleet = FleetObservation {
                limited_backends,
                queued,
                longest_wait_seconds: Some(3.0),
                ..FleetObservation::default()
            };
            let found = rule.judge(&fleet, false, start + Duration::from_secs(seconds));
            let is_named = found.is_some_and(|it| {
                it.cause
                    .is_some_and(|cause| cause.contains("admission.max_in_flight"))
                    && it.remedy != GATEWAY_QUEUE.remedy
            });
            assert_eq!(is_named, seconds > 0, "{seconds} s");
        }
    }
}
