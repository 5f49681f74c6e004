//! The rule about a model that no backend lists any more, although clients still send requests for it.

use super::observation::{FleetObservation, first_of};
use crate::recent::Recent;
use crate::rule::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time after which a model is removed from the verdict if no request names it.
const FORGET_AFTER: Duration = Duration::from_mins(5);
/// Length of the window whose requests determine the severity.
const SEVERITY_WINDOW: Duration = Duration::from_secs(30);
/// Maximum number of models that the cause of the verdict names.
const MAX_NAMED: usize = 3;

pub(super) static MODEL_GONE: DiagnosisRule = DiagnosisRule {
    name: "model_gone",
    severity: "warning, critical if more than 5 % of requests get this 404",
    meaning: "Requests come for a model that no backend lists any more: all fail with 404.",
    evidence: "In the last five minutes a request got 404 for a model that a backend listed before \
               or the configuration names. No backend lists it now; one that is down keeps its list.",
    remedy: "Start a backend with the model, or load the LoRA adapter again (--lora-modules). Or \
             give the name to another model (served_as in models).",
    disproof: "GET /v1/models of the gateway lists the model.",
    ..DiagnosisRule::FLEET
};

/// The models that requests named and that no backend lists, by name.
#[derive(Debug, Default)]
pub(super) struct UnservedModels(BTreeMap<String, UnservedModel>);

#[derive(Debug, Default)]
struct UnservedModel {
    /// Number of requests for the model so far, as of the last evaluation.
    total: u64,
    /// The numbers of new requests of the evaluations that found some.
    recent: Recent<u64>,
}

impl UnservedModels {
    /// The verdict of the rule, if its condition holds at `now`.
    pub(super) fn judge(&mut self, fleet: &FleetObservation, now: Instant) -> Option<Verdict> {
        self.observe(fleet, now);
        let missed = self.0.iter().filter(|(_, model)| model.recent.len() > 0);
        let missed: Vec<(&String, &UnservedModel)> = missed.collect();
        let names = missed.iter().map(|(name, _)| name.as_str());
        let mut cause = first_of(names, MAX_NAMED, ", ");
        if missed.is_empty() {
            return None;
        }
        if missed.len() > MAX_NAMED {
            cause = format!("{cause} and {} more", missed.len() - MAX_NAMED);
        }
        let listed = fleet.listed_models();
        if !listed.is_empty() {
            cause = format!("{cause}; the backends list {listed}");
        }
        let sum = |window: Duration| {
            let recent = missed.iter().map(|(_, model)| &model.recent);
            recent.flat_map(|it| it.within(window, now)).sum::<u64>()
        };
        let failed = sum(FORGET_AFTER) as f64;
        let seconds = FORGET_AFTER.as_secs_f64();
        let evidence = Evidence::new("failed_requests", failed, "requests", seconds);
        let severity = VerdictSeverity::of_harm(sum(SEVERITY_WINDOW), fleet.counts.requests);
        let found = MODEL_GONE.verdict(severity).because(cause);
        Some(found.with([evidence]))
    }

    fn observe(&mut self, fleet: &FleetObservation, now: Instant) {
        let unserved = &fleet.unserved_models;
        self.0
            .retain(|name, _| unserved.iter().any(|(other, _)| other == name));
        for (name, total) in unserved {
            let model = self.0.entry(name.clone()).or_default();
            let new = total.saturating_sub(model.total);
            model.total = *total;
            model.recent.forget(FORGET_AFTER, now);
            if new > 0 {
                model.recent.add(new, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::observation::RecentCounts;
    use tokenweir_protocol::clock;

    #[test]
    fn the_verdict_ends_minutes_after_the_last_request() {
        let mut rule = UnservedModels::default();
        let start = clock::epoch();
        let mut judge = |seconds, models: &[(&str, u64)], requests| {
            let unserved_models = models
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count));
            let unserved_models = unserved_models.collect();
            let counts = RecentCounts {
                requests,
                ..RecentCounts::default()
            };
            let fleet = FleetObservation {
                counts,
                unserved_models,
                ..FleetObservation::default()
            };
            let found = rule.judge(&fleet, start + Duration::from_secs(seconds));
            found.map(|it| format!("{} {}", it.severity.as_str(), it.cause.unwrap()))
        };
        assert_eq!(judge(0, &[], 100), None);
        assert_eq!(
            judge(5, &[("lora", 3)], 100).as_deref(),
            Some("warning lora")
        );
        assert_eq!(
            judge(10, &[("lora", 30)], 100).as_deref(),
            Some("critical lora")
        );
        assert_eq!(
            judge(60, &[("lora", 30)], 100).as_deref(),
            Some("warning lora")
        );
        assert_eq!(judge(310, &[("lora", 30)], 100), None, "nobody asks for it");
        let many = [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("lora", 30)];
        assert_eq!(
            judge(315, &many, 100).as_deref(),
            Some("warning a, b, c and 1 more")
        );
        assert_eq!(judge(320, &[], 100), None, "they are listed again");
    }
}
