//! Follows the conditions of the diagnosis from their begin to their end, as Prometheus follows the
//! condition of a rule. It does no I/O.

use super::held_alert::{AlertCondition, AlertLabels, AlertRule, AlertTexts, HeldAlert};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};
use tokenweir_diagnose::{Diagnosis, VerdictSeverity};

/// The conditions that hold, and the alerts that ended recently.
#[derive(Debug, Default)]
pub(super) struct AlertTracker {
    tracked: BTreeMap<AlertLabels, TrackedCondition>,
    /// Whether the last evaluation had more conditions than [`MAX_CONDITIONS`].
    is_full: bool,
}

#[derive(Debug)]
struct TrackedCondition {
    rule: AlertRule,
    texts: AlertTexts,
    began_at: Instant,
    last_found: Instant,
    /// `None`: the condition has not held long enough.
    fired_at: Option<SystemTime>,
    /// The end of the alert. `None`: the alert has not ended.
    ended_at: Option<(Instant, SystemTime)>,
}

/// Maximum number of conditions that are followed at a time. The diagnosis sorts verdicts by
/// severity, so further conditions are the least severe ones.
const MAX_CONDITIONS: usize = 200;
/// Time for which an ended alert is still sent. A firing alert expires at an Alertmanager after the
/// same time, so an Alertmanager that was unreachable for longer needs no information of the end.
pub(super) const VALIDITY: Duration = Duration::from_mins(5);

impl AlertTracker {
    /// Updates the conditions with a diagnosis. Returns the alerts that fire or that ended in the
    /// last [`VALIDITY`].
    pub(super) fn update(
        &mut self,
        diagnosis: &Diagnosis,
        instance: &str,
        (now, wall_time): (Instant, SystemTime),
    ) -> Vec<HeldAlert> {
        let is_harmful = |severity| severity > VerdictSeverity::Info;
        let verdicts = diagnosis.verdicts.iter().filter(|it| is_harmful(it.severity));
        let verdicts = verdicts.map(|verdict| AlertCondition::of_verdict(verdict, instance));
        let anomalies = diagnosis.anomalies.iter();
        let anomalies = anomalies.map(|anomaly| AlertCondition::of_anomaly(anomaly, instance));
        let was_full = std::mem::take(&mut self.is_full);
        for condition in verdicts.chain(anomalies) {
            self.add(condition, now);
        }
        if self.is_full && !was_full {
            tracing::warn!(
                limit = MAX_CONDITIONS,
                "too many conditions for Alertmanager: the least severe ones are left out"
            );
        }
        self.tracked.retain(|_, condition| condition.advance(now, wall_time));
        let held = self.tracked.iter().filter_map(|(labels, condition)| {
            Some(HeldAlert {
                labels: labels.clone(),
                texts: condition.texts.clone(),
                fired_at: condition.fired_at?,
                ended_at: condition.ended_at.map(|(_, wall_time)| wall_time),
            })
        });
        held.collect()
    }

    fn add(&mut self, condition: AlertCondition, now: Instant) {
        let AlertCondition { rule, labels, texts } = condition;
        let is_full = self.tracked.len() >= MAX_CONDITIONS;
        match self.tracked.get_mut(&labels) {
            Some(tracked) if tracked.ended_at.is_none() => {
                (tracked.texts, tracked.last_found) = (texts, now);
            }
            None if is_full => self.is_full = true,
            _ => {
                let tracked = TrackedCondition {
                    rule,
                    texts,
                    began_at: now,
                    last_found: now,
                    fired_at: None,
                    ended_at: None,
                };
                self.tracked.insert(labels, tracked);
            }
        }
    }
}

impl TrackedCondition {
    /// Fires or ends the alert. Returns whether the condition is still needed.
    fn advance(&mut self, now: Instant, wall_time: SystemTime) -> bool {
        let since = |at| now.saturating_duration_since(at);
        if let Some((ended_at, _)) = self.ended_at {
            return since(ended_at) < VALIDITY;
        }
        let is_found = self.last_found == now;
        if self.fired_at.is_none() {
            if is_found && since(self.began_at) >= self.rule.holds_for {
                self.fired_at = Some(wall_time);
            }
            return is_found;
        }
        if !is_found && since(self.last_found) >= self.rule.stays_for {
            self.ended_at = Some((now, wall_time));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::held_alert::{ANOMALY_RULE, VERDICT_RULE, request_body};
    use super::*;
    use std::time::UNIX_EPOCH;
    use tokenweir_core::clock;
    use tokenweir_diagnose::{Anomaly, Verdict};

    /// A tracker that gets a diagnosis every 5 s.
    struct Evaluations {
        tracker: AlertTracker,
        start: Instant,
        seconds: u64,
    }

    impl Evaluations {
        fn new() -> Self {
            Self { tracker: AlertTracker::default(), start: clock::now(), seconds: 0 }
        }

        /// The alerts after the evaluation that follows `time` of evaluations with this diagnosis.
        fn after(&mut self, time: Duration, diagnosis: &Diagnosis) -> Vec<HeldAlert> {
            let end = self.seconds + time.as_secs();
            loop {
                let passed = Duration::from_secs(self.seconds);
                let times = (self.start + passed, UNIX_EPOCH + passed);
                let alerts = self.tracker.update(diagnosis, "gateway-0:9090", times);
                self.seconds += 5;
                if self.seconds > end {
                    return alerts;
                }
            }
        }
    }

    fn verdict(name: &'static str, severity: VerdictSeverity) -> Verdict {
        Verdict { verdict: name.into(), backend: "gpu-0".into(), severity, ..Verdict::default() }
    }

    fn with_verdict(severity: VerdictSeverity) -> Diagnosis {
        Diagnosis { verdicts: vec![verdict("kv_thrashing", severity)], ..Diagnosis::default() }
    }

    #[test]
    fn an_alert_fires_after_its_time_ends_after_its_time_and_is_then_forgotten() {
        let mut evaluations = Evaluations::new();
        let holds = with_verdict(VerdictSeverity::Critical);
        let AlertRule { holds_for, stays_for, .. } = VERDICT_RULE;
        // Evaluations are 5 s apart.
        let before = |time: Duration| Duration::from_secs(time.as_secs() - 10);
        assert_eq!(evaluations.after(before(holds_for), &holds), []);
        let fired = evaluations.after(Duration::from_secs(5), &holds);
        assert_eq!(fired.len(), 1);
        assert_eq!(fired[0].ended_at, None);
        let gap = evaluations.after(before(stays_for), &Diagnosis::default());
        assert_eq!(gap, fired, "a short gap does not end the alert");
        let ended = evaluations.after(Duration::from_secs(15), &Diagnosis::default());
        assert!(ended[0].ended_at.is_some_and(|end| end > ended[0].fired_at), "{ended:?}");
        assert_eq!(evaluations.after(VALIDITY, &Diagnosis::default()), []);
    }

    #[test]
    fn a_condition_that_ends_early_and_one_without_harm_raise_no_alert() {
        let mut evaluations = Evaluations::new();
        let (short, long) = (Duration::from_secs(170), Duration::from_mins(10));
        for _ in 0..5 {
            assert_eq!(evaluations.after(short, &with_verdict(VerdictSeverity::Warning)), []);
            assert_eq!(evaluations.after(Duration::ZERO, &Diagnosis::default()), []);
        }
        assert_eq!(evaluations.after(long, &with_verdict(VerdictSeverity::Info)), []);
    }

    #[test]
    fn another_severity_is_another_alert_and_a_new_begin_fires_again() {
        let mut evaluations = Evaluations::new();
        let long = VERDICT_RULE.holds_for + VERDICT_RULE.stays_for;
        evaluations.after(long, &with_verdict(VerdictSeverity::Warning));
        let both = evaluations.after(long, &with_verdict(VerdictSeverity::Critical));
        let state = |it: &HeldAlert| (it.labels["verdict_severity"].clone(), it.ended_at.is_some());
        let states: Vec<_> = both.iter().map(state).collect();
        assert_eq!(states, [("critical".to_owned(), false), ("warning".to_owned(), true)]);
        let again = evaluations.after(long, &with_verdict(VerdictSeverity::Warning));
        let states: Vec<_> = again.iter().map(state).collect();
        assert_eq!(states, [("critical".to_owned(), true), ("warning".to_owned(), false)]);
    }

    #[test]
    fn the_number_of_conditions_is_bounded_and_the_severest_come_first() {
        let mut evaluations = Evaluations::new();
        let anomaly = |number| Anomaly {
            backend: format!("gpu-{number}"),
            measure: "ttft".into(),
            value: 4.0,
            unit: "s".into(),
            usual: 0.5,
        };
        let anomalies = (0..MAX_CONDITIONS + 50).map(anomaly).collect();
        let diagnosis = Diagnosis { anomalies, ..with_verdict(VerdictSeverity::Critical) };
        let alerts = evaluations.after(ANOMALY_RULE.holds_for, &diagnosis);
        assert_eq!(alerts.len(), MAX_CONDITIONS);
        assert!(alerts.iter().any(|alert| alert.labels["alertname"] == VERDICT_RULE.name));
    }

    #[test]
    fn the_request_has_labels_texts_a_runbook_and_both_times() {
        let mut evaluations = Evaluations::new();
        let diagnosis = with_verdict(VerdictSeverity::Critical);
        let alerts = evaluations.after(VERDICT_RULE.holds_for, &diagnosis);
        let expires_at = UNIX_EPOCH + Duration::from_secs(500);
        let body = request_body(&alerts, "http://gateway:9090/runbooks", expires_at).unwrap();
        let posted: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let expected = serde_json::json!([{
            "labels": {
                "alertname": "TokenweirVerdict", "severity": "ticket", "area": "diagnosis",
                "instance": "gateway-0:9090", "backend": "gpu-0", "verdict": "kv_thrashing",
                "verdict_severity": "critical",
            },
            "annotations": {
                "summary": "Diagnosis: kv_thrashing (critical) at gpu-0", "description": "",
                "runbook_url": "http://gateway:9090/runbooks#kv_thrashing",
            },
            "startsAt": "1970-01-01T00:03:00.000Z", "endsAt": "1970-01-01T00:08:20.000Z",
        }]);
        assert_eq!(posted, expected);
    }
}
