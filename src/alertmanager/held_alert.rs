//! The alert of one verdict or anomaly: its labels, its texts, and its JSON.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime};
use tokenweir_diagnose::{Anomaly, Evidence, Verdict};

/// The labels of an alert, which identify the alert.
pub(super) type AlertLabels = BTreeMap<&'static str, String>;

/// The name and the times of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlertRule {
    /// The value of the label `alertname`.
    pub name: &'static str,
    /// Time for which the condition must hold before the alert fires.
    pub holds_for: Duration,
    /// Time for which the alert keeps firing after the condition has ended.
    pub stays_for: Duration,
}

/// The alert of a verdict.
pub const VERDICT_RULE: AlertRule = AlertRule {
    name: "TokenweirVerdict",
    holds_for: Duration::from_mins(3),
    stays_for: Duration::from_mins(2),
};

/// The alert of an anomaly. An anomaly is a hint, so it must hold longer.
pub const ANOMALY_RULE: AlertRule = AlertRule {
    name: "TokenweirAnomaly",
    holds_for: Duration::from_mins(10),
    stays_for: Duration::from_mins(5),
};

/// A condition of the diagnosis as an alert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AlertCondition {
    pub(super) rule: AlertRule,
    pub(super) labels: AlertLabels,
    pub(super) texts: AlertTexts,
}

/// The annotations of an alert, which may change while the alert fires.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AlertTexts {
    summary: String,
    description: String,
    /// The section of the page of runbooks.
    anchor: String,
}

/// An alert that fires or that ended recently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldAlert {
    pub(super) labels: AlertLabels,
    pub(super) texts: AlertTexts,
    pub(super) fired_at: SystemTime,
    /// `None`: the alert fires.
    pub(super) ended_at: Option<SystemTime>,
}

/// The JSON of an alert in the API v2 of Alertmanager.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PostedAlert<'a> {
    labels: &'a AlertLabels,
    annotations: PostedAnnotations<'a>,
    starts_at: String,
    ends_at: String,
}

#[derive(Serialize)]
struct PostedAnnotations<'a> {
    summary: &'a str,
    description: &'a str,
    runbook_url: String,
}

/// Maximum length of a description, in bytes. Drain reasons of operators are part of it.
const MAX_DESCRIPTION_BYTES: usize = 2_000;

impl AlertCondition {
    /// The alert of a verdict.
    pub(super) fn of_verdict(verdict: &Verdict, instance: &str) -> Self {
        let mut labels = labels(VERDICT_RULE, instance, &verdict.backend);
        labels.insert("verdict", verdict.verdict.to_string());
        labels.insert("verdict_severity", verdict.severity.as_str().to_owned());
        let mut description = verdict.meaning.to_string();
        if let Some(cause) = &verdict.cause {
            // Writing to a string cannot fail.
            let _ = write!(description, " Cause: {cause}.");
        }
        for evidence in &verdict.evidence {
            write_evidence(&mut description, evidence);
        }
        if !verdict.remedy.is_empty() {
            let _ = write!(description, " Remedy: {}", verdict.remedy);
        }
        let (name, severity) = (&verdict.verdict, verdict.severity.as_str());
        let summary = format!("Diagnosis: {name} ({severity}) at {}", verdict.subject());
        let texts = AlertTexts::new(summary, description, name.to_string());
        Self { rule: VERDICT_RULE, labels, texts }
    }

    /// The alert of an anomaly.
    pub(super) fn of_anomaly(anomaly: &Anomaly, instance: &str) -> Self {
        let Anomaly { backend, measure, value, unit, usual } = anomaly;
        let mut labels = labels(ANOMALY_RULE, instance, backend);
        labels.insert("measure", measure.to_string());
        let summary = format!("Anomaly: {measure} of {backend}");
        let description = format!(
            "{measure} of {backend} is {value:.4} {unit}. The usual value of the last hour is \
             {usual:.4}."
        );
        let texts = AlertTexts::new(summary, description, ANOMALY_RULE.name.to_lowercase());
        Self { rule: ANOMALY_RULE, labels, texts }
    }
}

/// The labels that all alerts of a rule have. The generated routes of Alertmanager use `severity`
/// and `area`.
fn labels(rule: AlertRule, instance: &str, backend: &str) -> AlertLabels {
    let mut labels = AlertLabels::from([
        ("alertname", rule.name.to_owned()),
        ("severity", "ticket".to_owned()),
        ("area", "diagnosis".to_owned()),
        ("instance", instance.to_owned()),
    ]);
    if !backend.is_empty() {
        labels.insert("backend", backend.to_owned());
    }
    labels
}

fn write_evidence(description: &mut String, evidence: &Evidence) {
    let Evidence { measure, value, unit, usual, .. } = evidence;
    // Writing to a string cannot fail.
    let _ = write!(description, " {measure}: {value:.4} {unit}");
    if let Some(usual) = usual {
        let _ = write!(description, ", usually {usual:.4}");
    }
    description.push('.');
}

impl AlertTexts {
    fn new(summary: String, mut description: String, anchor: String) -> Self {
        description.truncate(description.floor_char_boundary(MAX_DESCRIPTION_BYTES));
        Self { summary, description, anchor }
    }
}

/// The body of a request with these alerts. An alert that fires ends at `expires_at` unless a later
/// request repeats the alert.
pub(super) fn request_body(
    alerts: &[HeldAlert],
    runbooks: &str,
    expires_at: SystemTime,
) -> serde_json::Result<Vec<u8>> {
    let time = |time| humantime::format_rfc3339_millis(time).to_string();
    let posted = alerts.iter().map(|alert| {
        let HeldAlert { labels, texts, fired_at, ended_at } = alert;
        let annotations = PostedAnnotations {
            summary: &texts.summary,
            description: &texts.description,
            runbook_url: format!("{runbooks}#{}", texts.anchor),
        };
        let ends_at = time(ended_at.unwrap_or(expires_at));
        PostedAlert { labels, annotations, starts_at: time(*fired_at), ends_at }
    });
    serde_json::to_vec(&posted.collect::<Vec<_>>())
}
