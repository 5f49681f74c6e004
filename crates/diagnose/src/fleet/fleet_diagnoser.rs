//! Turns the conditions of the fleet into verdicts, and keeps the time at which each began.

use super::backend_failures::{BackendFailures, COMMON_REMEDY, SAME_MOMENT};
use super::gateway_queue::GatewayQueue;
use super::gateway_rules::GatewayRules;
use super::limits::GatewayLimits;
use super::observation::FleetObservation;
use super::refused_by_backends::RefusedByBackends;
use super::restarts::Restarts;
use super::rules::{BACKEND_AWAITED, BACKEND_DOWN, BACKEND_EJECTED, NO_CAPACITY, SHEDDING, judge};
use super::starvation::{Starvation, killed};
use super::unserved_models::UnservedModels;
use crate::rule::prelude::*;
use crate::verdict::VerdictScope;
use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Instant;
use tokenweir_routing::resilience::DownKind;

/// Maximum number of seconds from a reload to the start of a verdict that the reload may have caused.
const CAUSED_WITHIN_SECONDS: f64 = 150.0;
/// Maximum number of seconds between verdicts that begin at the same time: the interval of one evaluation and
/// its delay.
const SAME_SECONDS: f64 = 6.0;
/// Maximum delay with which a reload is noticed, in seconds.
const RELOAD_LATE_SECONDS: f64 = 10.0;

/// The rules about the fleet and the gateway, with the state that they need between two evaluations.
#[derive(Debug, Default)]
pub(crate) struct FleetDiagnoser {
    /// The time at which each verdict that holds began, by the names of its rule and of its backend.
    begins: HashMap<(Cow<'static, str>, String), Instant>,
    first_at: Option<Instant>,
    gateway: GatewayRules,
    gateway_queue: GatewayQueue,
    failures: BackendFailures,
    limits: GatewayLimits,
    refused_by_backends: RefusedByBackends,
    restarts: Restarts,
    starvation: Starvation,
    unserved_models: UnservedModels,
}

impl FleetDiagnoser {
    /// The verdicts about the fleet and the gateway at `now`. A verdict begins and ends with its condition.
    pub(crate) fn diagnose(&mut self, fleet: &FleetObservation, now: Instant) -> Vec<Verdict> {
        let mut verdicts = judge(fleet);
        let is_named = verdicts.iter().any(is_about_wait);
        let queue = self.gateway_queue.judge(fleet, is_named, now);
        if let Some(left) = self.gateway_queue.left_clause(now) {
            let about_wait = verdicts.iter_mut().filter(|it| is_about_wait(it));
            about_wait.for_each(|found| found.add_to_cause(&left));
        }
        verdicts.extend(queue);
        verdicts.extend(self.limits.judge(fleet, now));
        let is_excused = |kind: &str| self.limits.excuses(kind);
        let failing = self.failures.judge(fleet, is_excused, now);
        // If a backend is failing and ejected, only its failures are reported: they are the reason for
        // the ejection, and last longer than the ejection.
        let is_ejected = |found: &Verdict| found.verdict == BACKEND_EJECTED.name;
        let is_failing = |name: &str| failing.iter().any(|it| it.backend == name);
        verdicts.retain(|found| !is_ejected(found) || !is_failing(&found.backend));
        for found in verdicts.iter_mut().filter(|it| is_ejected(it)) {
            self.failures.explain_ejection(found, fleet);
        }
        verdicts.extend(failing);
        verdicts.extend(self.refused_by_backends.judge(fleet, now));
        verdicts.extend(self.restarts.judge(fleet, now));
        verdicts.extend(self.unserved_models.judge(fleet, now));
        verdicts.extend(self.gateway.judge(fleet, now));
        verdicts.extend(self.starvation.judge(&fleet.gateway.cpu, now));
        verdicts.extend(killed(&fleet.gateway.starts));
        self.name_begins(&mut verdicts, fleet, now);
        self.name_same_outage(&mut verdicts, fleet, now);
        verdicts
    }

    /// Sets the time at which each verdict began, and adds the reload before that time.
    fn name_begins(&mut self, verdicts: &mut [Verdict], fleet: &FleetObservation, now: Instant) {
        let mut begins = HashMap::new();
        for verdict in verdicts {
            let key = (verdict.verdict.clone(), verdict.backend.clone());
            let begin = self.begins.get(&key).copied().unwrap_or(now);
            verdict.age_seconds = now.saturating_duration_since(begin).as_secs_f64();
            if verdict.scope != VerdictScope::Backend {
                name_reload(verdict, fleet);
            }
            begins.insert(key, begin);
        }
        self.begins = begins;
    }

    /// If all backends went down at the same time, adds to their verdicts that the cause may be between the
    /// gateway and the backends. Their reasons must allow this, and they must have been up at the first
    /// evaluation.
    fn name_same_outage(
        &mut self,
        verdicts: &mut [Verdict],
        fleet: &FleetObservation,
        now: Instant,
    ) {
        let first = *self.first_at.get_or_insert(now);
        let observed = now.saturating_duration_since(first).as_secs_f64();
        let is_down = |found: &&mut Verdict| found.verdict == BACKEND_DOWN.name;
        let mut down: Vec<&mut Verdict> = verdicts.iter_mut().filter(is_down).collect();
        let reasons = fleet.backends.iter().map(|it| it.reason.as_deref());
        let may_be_between = |reason: Option<&str>| {
            let kind = reason.and_then(DownKind::of_reason);
            kind.is_some_and(|kind| kind.may_be_between())
        };
        if down.len() < 2
            || down.len() != fleet.backends.len()
            || !reasons.into_iter().all(may_be_between)
        {
            return;
        }
        let ages = down.iter().map(|found| found.age_seconds);
        let oldest = ages.clone().fold(0.0, f64::max);
        let youngest = ages.fold(f64::MAX, f64::min);
        if oldest - youngest > SAME_SECONDS || oldest >= observed {
            return;
        }
        for found in &mut down {
            found.add_to_cause(SAME_MOMENT);
            found.remedy = format!("{COMMON_REMEDY} {}", found.remedy);
        }
    }

    /// Whether measured times are unusable because the gateway itself stood still or lacked CPU time.
    pub(crate) fn is_disturbed(&self, now: Instant) -> bool {
        self.starvation.is_disturbed(now)
    }
}

/// Whether the condition of the verdict makes requests wait or makes the gateway refuse them.
fn is_about_wait(found: &Verdict) -> bool {
    [NO_CAPACITY.name, SHEDDING.name, BACKEND_AWAITED.name].contains(&&*found.verdict)
}

/// Adds to a verdict the reload that preceded it.
pub(crate) fn name_reload(verdict: &mut Verdict, fleet: &FleetObservation) {
    let Some(reload) = &fleet.reload else { return };
    let began_after = reload.age_seconds - verdict.age_seconds;
    let is_caused = (-RELOAD_LATE_SECONDS..CAUSED_WITHIN_SECONDS).contains(&began_after);
    if is_caused && verdict.severity > VerdictSeverity::Info {
        verdict.add_to_cause(&format!(
            "it began {:.0} s after the reload at {}: {}",
            began_after.max(0.0),
            reload.clock,
            reload.changed
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DrainSummary, FleetBackend, observation};
    use super::*;
    use crate::fleet::observation::{AwaitedModel, RecentCounts};
    use std::time::Duration;
    use tokenweir_protocol::clock;
    use tokenweir_routing::resilience::Availability::{
        self, Asleep, Available, Down, Drained, Ejected, Unknown, ZeroWeight,
    };

    fn backend(name: &str, state: Availability) -> FleetBackend {
        let drain = DrainSummary {
            by: "an operator at 10.0.0.7".to_owned(),
            reason: Some("kernel update".to_owned()),
            age_seconds: 300.0,
            remaining_seconds: Some(480.0),
            ..DrainSummary::default()
        };
        FleetBackend {
            reason: (state == Down).then(|| "Connection refused (os error 111)".to_owned()),
            drain: (state == Drained).then_some(drain),
            ..observation::tests::backend(name, state)
        }
    }

    fn fleet(states: &[Availability], requests: u64, refused: u64) -> FleetObservation {
        let named = states.iter().enumerate();
        FleetObservation {
            backends: named
                .map(|(n, state)| backend(&format!("gpu-{n}"), *state))
                .collect(),
            counts: RecentCounts {
                requests,
                refused,
                ..RecentCounts::default()
            },
            window_seconds: 30.0,
            queued: 7,
            ..FleetObservation::default()
        }
    }

    /// Returns the verdicts about the fleet as texts of the form `severity name backend`.
    fn named(fleet: &FleetObservation) -> Vec<String> {
        let verdicts = FleetDiagnoser::default().diagnose(fleet, clock::epoch());
        let name = |verdict: &Verdict| {
            let text = format!(
                "{} {} {}",
                verdict.severity.as_str(),
                verdict.verdict,
                verdict.backend
            );
            text.trim_end().to_owned()
        };
        verdicts.iter().map(name).collect()
    }

    #[test]
    fn refusals_name_backends_that_left() {
        let mut rules = FleetDiagnoser::default();
        let now = clock::epoch();
        rules.diagnose(&fleet(&[Available; 3], 100, 12), now);
        let found = rules.diagnose(&fleet(&[Available], 100, 12), now);
        let cause = found[0].cause_or_meaning();
        assert!(
            cause.ends_with("removed 2 of 3 backends in the last 0 s (gpu-1, gpu-2)"),
            "{cause}"
        );
    }

    #[test]
    fn severity_follows_the_refused_and_waiting_share() {
        let drained = [Available, Drained];
        assert_eq!(
            named(&fleet(&drained, 100, 0)),
            ["info backend_drained gpu-1"]
        );
        assert_eq!(
            named(&fleet(&drained, 100, 3)),
            ["warning shedding", "info backend_drained gpu-1"]
        );
        assert_eq!(
            named(&fleet(&drained, 100, 12)),
            ["critical shedding", "critical backend_drained gpu-1"]
        );
        let mut waiting = fleet(&drained, 100, 0);
        waiting.counts.waited = 26;
        assert_eq!(named(&waiting), ["critical backend_drained gpu-1"]);
        assert_eq!(
            named(&fleet(&[Available; 3], 1_000, 2)),
            [""; 0],
            "two are no condition"
        );
        assert_eq!(
            named(&fleet(&[Available, Down], 9, 0)),
            ["warning backend_down gpu-1"]
        );
        assert_eq!(
            named(&fleet(&[Available, Ejected], 9, 0)),
            ["warning backend_ejected gpu-1"]
        );
    }

    #[test]
    fn without_available_backends_there_is_no_capacity() {
        for state in [Asleep, ZeroWeight] {
            assert_eq!(named(&fleet(&[state; 2], 0, 0)), ["critical no_capacity"]);
        }
        let mixed = fleet(&[Drained, Down, Asleep], 10, 10);
        let verdicts = FleetDiagnoser::default().diagnose(&mixed, clock::epoch());
        assert_eq!(
            verdicts[0].cause.as_deref(),
            Some("1 asleep, 1 drained, 1 down")
        );
        assert!((verdicts[0].evidence[0].value - 1.0).abs() < 1e-9);
        assert_eq!(verdicts.len(), 3, "{verdicts:#?}");
        assert_eq!(named(&fleet(&[], 0, 0)), ["critical no_capacity"]);
        assert_eq!(
            named(&fleet(&[Unknown, Down], 0, 0)),
            ["warning backend_down gpu-1"]
        );
    }

    #[test]
    fn the_cause_names_the_awaited_models() {
        let awaited = |model: &str, requests, seconds| AwaitedModel {
            served_as: None,
            model: model.to_owned(),
            requests,
            seconds,
        };
        let awaited_models = vec![awaited("`llama`", 12, 40.0), awaited("any model", 1, 300.0)];
        let observed = FleetObservation {
            awaited_models,
            ..fleet(&[Available], 0, 0)
        };
        assert_eq!(named(&observed), ["warning backend_awaited"]);
        let verdicts = FleetDiagnoser::default().diagnose(&observed, clock::epoch());
        let expected = "no backend of `llama` for 40 s, 12 requests wait; \
                        no backend of any model for 5 min, 1 request waits";
        assert_eq!(verdicts[0].cause.as_deref(), Some(expected));
    }

    #[test]
    fn causes_name_the_operator_and_health_check_error() {
        let observed = fleet(&[Available, Drained, Down], 100, 50);
        let verdicts = FleetDiagnoser::default().diagnose(&observed, clock::epoch());
        let causes: Vec<_> = verdicts
            .iter()
            .map(|it| it.cause.as_deref().unwrap())
            .collect();
        assert_eq!(
            causes,
            [
                "1 of 3 backends get requests: 1 drained, 1 down",
                "drained by an operator at 10.0.0.7 5 min ago, for 8 min more: kernel update",
                "connection refused: no process listens there",
            ]
        );
    }

    #[test]
    fn a_drain_without_end_warns_after_an_hour() {
        let mut observed = fleet(&[Available, Drained], 10, 0);
        let drain = observed.backends[1].drain.as_mut().unwrap();
        drain.age_seconds = 3_600.0;
        assert_eq!(
            named(&observed),
            ["info backend_drained gpu-1"],
            "it ends by itself"
        );
        observed.backends[1]
            .drain
            .as_mut()
            .unwrap()
            .remaining_seconds = None;
        assert_eq!(named(&observed), ["warning backend_drained gpu-1"]);
    }

    #[test]
    fn simultaneous_outages_of_all_have_one_cause() {
        let cause_at_all = |reason: &str, before: Availability| {
            let mut diagnoser = FleetDiagnoser::default();
            let start = clock::epoch();
            diagnoser.diagnose(&fleet(&[before; 2], 0, 0), start);
            let mut observed = fleet(&[Down; 2], 0, 0);
            for backend in &mut observed.backends {
                backend.reason = Some(reason.to_owned());
            }
            let found = diagnoser.diagnose(&observed, start + Duration::from_secs(5));
            let found = found
                .into_iter()
                .rfind(|it| it.verdict == BACKEND_DOWN.name);
            let cause = found.and_then(|it| it.cause).unwrap();
            cause.contains("all at the same moment")
        };
        assert!(cause_at_all("/health: Closed", Available));
        assert!(!cause_at_all("/health: Closed", Down), "since the start");
        let refused = "Connection refused (os error 111)";
        assert!(!cause_at_all(refused, Available), "the engines have ended");
    }

    #[test]
    fn the_age_counts_from_the_beginning() {
        let mut diagnoser = FleetDiagnoser::default();
        let start = clock::epoch();
        let mut age_at = |seconds, states: &[Availability]| {
            let now = start + Duration::from_secs(seconds);
            let verdicts = diagnoser.diagnose(&fleet(states, 0, 0), now);
            verdicts.first().map(|verdict| verdict.age_seconds as u64)
        };
        assert_eq!(age_at(0, &[Available, Down]), Some(0));
        assert_eq!(age_at(20, &[Available, Down]), Some(20));
        assert_eq!(age_at(25, &[Available, Available]), None);
        assert_eq!(age_at(30, &[Available, Down]), Some(0));
    }
}
