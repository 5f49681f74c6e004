//! The result of a diagnosis: verdicts with their evidence, remedies and disproofs, and rules whose result is
//! unknown. `/diagnose` returns these types as JSON.

mod origin;

pub(crate) use origin::Effect;
pub use origin::Origin;

use crate::harm::is_critical_harm;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::named_enum;

/// A condition that holds at a backend, for all backends together, or at the gateway. If the JSON of another
/// gateway version lacks a field, the field gets its default value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// The name of the rule that found the condition, such as `kv_backlog`.
    pub verdict: Cow<'static, str>,
    /// The name of the backend. Empty: the verdict is about all backends or about the gateway.
    pub backend: String,
    /// The part of the system that the verdict is about.
    pub scope: VerdictScope,
    /// How urgent the condition is.
    pub severity: VerdictSeverity,
    /// The confidence, from the number of independent signals.
    pub confidence: Confidence,
    /// The meaning of the condition, in one sentence.
    pub meaning: Cow<'static, str>,
    /// The cause of the condition. `None`: unknown.
    pub cause: Option<Cow<'static, str>>,
    /// Whether the verdict is kept although the last evaluation did not find the condition. Routing then avoids
    /// the backend, so there are too few requests to show whether the condition has ended.
    pub is_held: bool,
    /// Whether all backends have the same verdict.
    pub is_common: bool,
    /// Where the verdict places the cause.
    #[serde(skip)]
    pub origin: Origin,
    /// Time since the verdict began, in seconds.
    pub age_seconds: f64,
    /// The values that show the condition.
    pub evidence: Vec<Evidence>,
    /// The advice to an operator against the condition.
    pub remedy: String,
    /// An observation that would disprove the verdict.
    pub disproof: Cow<'static, str>,
    /// Link to the documentation of the rule.
    pub runbook: String,
}

/// Verdicts of one rule with the same severity, cause and remedy, at one or more backends.
#[derive(Debug, Clone)]
pub struct VerdictGroup<'a> {
    /// The first verdict of the group. Its texts are shown for the whole group.
    pub first: &'a Verdict,
    /// The number of verdicts in the group.
    pub count: usize,
    /// The subjects of the first verdicts of the group, at most [`MAX_NAMED_SUBJECTS`]: names of backends,
    /// `all backends` or `the gateway`.
    subjects: Vec<&'a str>,
}

/// Minimum share of requests that take longer than usual, for changes that harm clients.
pub(crate) const HARMFUL_SLOWER_SHARE: f64 = 0.2;
/// Maximum number of subjects that the heading of a group names.
const MAX_NAMED_SUBJECTS: usize = 3;

/// The value of a measure, with its usual value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// The name of the measure.
    pub measure: Cow<'static, str>,
    /// The value of the measure in the window.
    pub value: f64,
    /// The unit of `value` and `usual`, such as `s`.
    pub unit: Cow<'static, str>,
    /// The usual value: the median of the last 60 minutes in which no verdict held. `None`: unknown.
    pub usual: Option<f64>,
    /// The length of the window of `value`, in seconds.
    pub window_seconds: f64,
}

impl Evidence {
    /// A value without a usual value.
    pub fn new(measure: &'static str, value: f64, unit: &'static str, window_seconds: f64) -> Self {
        Self {
            measure: measure.into(),
            value,
            unit: unit.into(),
            usual: None,
            window_seconds,
        }
    }
}

/// A rule whose result is unknown because data is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndeterminedRule {
    /// The name of the rule.
    pub verdict: Cow<'static, str>,
    /// The name of the backend.
    pub backend: String,
    /// The data that the rule lacks. Each entry is the name of an engine metric in `/status`, `gateway` for
    /// data that only a gateway has, or a description.
    pub missing: Vec<Cow<'static, str>>,
}

/// A backend for which the rules were evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiagnosedBackend {
    /// The name of the backend.
    pub backend: String,
    /// Whether at least one rule had all its data.
    pub is_determined: bool,
}

/// The part of the system that a verdict is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictScope {
    /// A single backend, which the verdict names.
    #[default]
    Backend,
    /// All backends together.
    Fleet,
    /// The gateway itself, with its clients, files and collectors.
    Gateway,
}

named_enum! {
    /// The severity of a condition, in ascending order.
    #[derive(Default, PartialOrd, Ord, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum VerdictSeverity {
        /// The condition is deliberate, or clients are at fault.
        Info = "info",
        /// The condition makes requests slower or wastes capacity.
        #[default]
        Warning = "warning",
        /// The condition harms many requests, or gets worse until an operator acts.
        Critical = "critical",
    }
}

named_enum! {
    /// Confidence of a verdict: the number of independent signals that show the condition.
    #[derive(Default, PartialOrd, Ord, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Confidence {
        /// Only one signal shows the condition.
        #[default]
        Low = "low",
        /// Two independent signals show the condition.
        Medium = "medium",
        /// Three or more independent signals show the condition.
        High = "high",
    }
}

/// A measure whose value at a backend is far from usual.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Anomaly {
    /// The name of the backend.
    pub backend: String,
    /// The name of the measure.
    pub measure: Cow<'static, str>,
    /// The value in the last minute.
    pub value: f64,
    /// The unit of the value, such as `s`.
    pub unit: Cow<'static, str>,
    /// The usual value: the median of the last 60 minutes without a verdict.
    pub usual: f64,
}

/// A measure that is far from usual at one backend or at most backends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// The change in words, such as `all backends: time between tokens 40 ms, usually 10 ms`.
    pub words: String,
    /// The name of the backend. Empty: the change is at most backends.
    pub backend: String,
    /// The name of the measure.
    pub measure: Cow<'static, str>,
    /// The value divided by the usual value, at most 100.
    pub factor: f64,
    /// Time since the change was found, in seconds.
    pub age_seconds: f64,
}

/// The text of a verdict that currently holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertText {
    /// The name of the rule, which is the label value of the alert.
    pub verdict: Cow<'static, str>,
    /// The name of the backend. Empty: the verdict is about all backends or about the gateway.
    pub backend: String,
    /// The cause of the verdict at its beginning, or else its meaning.
    pub cause: String,
    /// The remedy of the verdict at its beginning.
    pub remedy: String,
}

/// The diagnosis of all backends at one time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Verdicts, sorted by severity, the highest first. At the same severity, verdicts about the
    /// fleet come first.
    pub verdicts: Vec<Verdict>,
    /// Rules whose result is unknown, with the missing data.
    pub undetermined: Vec<UndeterminedRule>,
    /// Measures whose values are far from usual. They are hints, not verdicts.
    pub anomalies: Vec<Anomaly>,
    /// The changes: at most two facts of engines, the newest first, and then at most two measures, the
    /// strongest first.
    #[serde(default)]
    pub changes: Vec<Change>,
    /// The share of requests that take at least 1.5 times as long as usual, from 0 to 1.
    #[serde(default)]
    pub slower_share: f64,
    /// Whether clients are harmed and no verdict explains it.
    #[serde(skip)]
    pub has_unexplained_harm: bool,
    /// The backends whose rules were evaluated.
    pub backends: Vec<DiagnosedBackend>,
    /// The texts that alerts show, which stay the same while a verdict holds.
    #[serde(skip)]
    pub alert_texts: Vec<AlertText>,
}

impl Verdict {
    /// The subject of the verdict: the name of the backend, all backends, or the gateway.
    pub fn subject(&self) -> &str {
        match self.scope {
            VerdictScope::Gateway => "the gateway",
            _ if self.is_common || self.backend.is_empty() => "all backends",
            VerdictScope::Backend | VerdictScope::Fleet => &self.backend,
        }
    }

    /// Sets the cause.
    pub fn because(self, cause: impl Into<Cow<'static, str>>) -> Self {
        let cause = Some(cause.into());
        Self { cause, ..self }
    }

    /// Replaces the remedy of the rule by a remedy for this verdict.
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        let remedy = remedy.into();
        Self { remedy, ..self }
    }

    /// Sets the place of the cause.
    pub(crate) fn at(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    pub(crate) fn about(self, backend: &BackendId) -> Self {
        let backend = backend.to_string();
        Self { backend, ..self }
    }

    /// Sets the evidence.
    pub fn with(self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        let evidence = evidence.into_iter().collect();
        Self { evidence, ..self }
    }

    /// Adds a clause to the cause, after a semicolon.
    pub fn add_to_cause(&mut self, clause: &str) {
        let cause = match &self.cause {
            Some(cause) => format!("{cause}; {clause}"),
            None => clause.to_owned(),
        };
        self.cause = Some(cause.into());
    }

    /// The cause, or the meaning of the verdict if the cause is unknown.
    pub fn cause_or_meaning(&self) -> &str {
        self.cause.as_deref().unwrap_or(&self.meaning)
    }
}

impl<'a> VerdictGroup<'a> {
    /// Groups the verdicts that have the same rule, scope, severity, cause and remedy. The groups have the
    /// order of their first verdicts.
    pub fn fold(verdicts: &'a [Verdict]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for verdict in verdicts {
            let same = groups.iter_mut().find(|it| it.has_same_finding(verdict));
            if let Some(group) = same {
                group.count += 1;
                if group.subjects.len() < MAX_NAMED_SUBJECTS {
                    group.subjects.push(verdict.subject());
                }
            } else {
                groups.push(Self {
                    first: verdict,
                    count: 1,
                    subjects: vec![verdict.subject()],
                });
            }
        }
        groups
    }

    /// The subjects of the group as text: the names of the first ones, and the number of all others.
    pub fn subject(&self) -> String {
        if self.first.is_common {
            return self.first.subject().to_owned();
        }
        let named = self.subjects.join(", ");
        match self.count - self.subjects.len() {
            0 => named,
            more => format!("{named} and {more} more"),
        }
    }

    fn has_same_finding(&self, other: &Verdict) -> bool {
        let first = self.first;
        // Values differ between backends with the same condition.
        first.verdict == other.verdict
            && first.scope == other.scope
            && first.severity == other.severity
            && without_numbers(first.cause_or_meaning())
                .eq(without_numbers(other.cause_or_meaning()))
            && without_numbers(&first.remedy).eq(without_numbers(&other.remedy))
    }
}

/// The characters of a text without digits and dots, so that texts with different numbers are equal.
fn without_numbers(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars()
        .filter(|character| !character.is_ascii_digit() && *character != '.')
}

impl VerdictSeverity {
    /// The severity of a condition that harms `harmed` of `total` requests: critical or a warning.
    pub(crate) fn of_harm(harmed: u64, total: u64) -> Self {
        Self::critical_if(is_critical_harm(harmed, total))
    }

    pub(crate) fn critical_if(is_critical: bool) -> Self {
        if is_critical {
            Self::Critical
        } else {
            Self::Warning
        }
    }
}

impl Confidence {
    pub(super) const fn from_signals(signals: usize) -> Self {
        match signals {
            0 | 1 => Self::Low,
            2 => Self::Medium,
            _ => Self::High,
        }
    }
}

impl Diagnosis {
    /// Sorts the verdicts by descending severity. The order of verdicts with the same severity is kept.
    pub(crate) fn sort(&mut self) {
        self.verdicts
            .sort_by_key(|it| std::cmp::Reverse(it.severity));
    }

    /// The changes, if requests take longer than usual or if no verdict explains harm to clients. Otherwise
    /// empty.
    pub fn harmful_changes(&self) -> &[Change] {
        if self.slower_share >= HARMFUL_SLOWER_SHARE || self.has_unexplained_harm {
            &self.changes
        } else {
            &[]
        }
    }

    /// The state of each verdict by backend and verdict name: true if the verdict holds, false if its rule is
    /// undetermined. All other verdicts about [`backends`](Self::backends) do not hold. The backend is empty
    /// for a verdict about all backends or about the gateway.
    pub fn known_verdicts(&self) -> HashMap<(&str, &str), bool> {
        let undetermined = self.undetermined.iter();
        let undetermined = undetermined.map(|it| ((&*it.backend, &*it.verdict), false));
        let verdicts = self.verdicts.iter();
        let verdicts = verdicts.map(|it| ((&*it.backend, &*it.verdict), true));
        undetermined.chain(verdicts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_verdicts_of_backends_form_one_group() {
        let verdict = |number: u32, cause: &'static str| Verdict {
            verdict: "backend_down".into(),
            backend: format!("gpu-{number}"),
            cause: Some(cause.into()),
            ..Verdict::default()
        };
        let mut verdicts: Vec<Verdict> = (0..5).map(|number| verdict(number, "refused")).collect();
        verdicts.insert(1, verdict(9, "timeout"));
        verdicts.push(Verdict {
            remedy: "Restart it.".into(),
            ..verdict(7, "refused")
        });
        let groups = VerdictGroup::fold(&verdicts);
        let shown: Vec<_> = groups
            .iter()
            .map(|group| (group.subject(), group.count))
            .collect();
        assert_eq!(
            shown,
            [
                ("gpu-0, gpu-1, gpu-2 and 2 more".to_owned(), 5),
                ("gpu-9".to_owned(), 1),
                ("gpu-7".to_owned(), 1)
            ]
        );
    }
}
