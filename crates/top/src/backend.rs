//! The details of one backend, and the risk of draining it.

use super::formatting::{count, percent, seconds, span, text};
use super::summary::status_counts;
use ratatui::crossterm::event::KeyCode;
use tokenweir_api::BackendSummary;
use tokenweir_diagnose::Verdict;

/// The risk of draining a backend: the number of other backends that get requests for its models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainRisk {
    /// At least two other backends remain, or the drained backend gets no requests anyway.
    None,
    /// One other backend remains for the model with this name.
    OneRemains(String),
    /// No other backend remains for the model with this name.
    NoneRemains(String),
}

impl DrainRisk {
    /// Returns the risk of draining `backend`. The model that the fewest other backends serve determines the
    /// risk.
    pub(super) fn of(backend: &BackendSummary, backends: &[BackendSummary]) -> Self {
        if !backend.up {
            return Self::None;
        }
        let others = || {
            backends
                .iter()
                .filter(|other| other.up && other.name != backend.name)
        };
        let serving = |model: &String| {
            others()
                .filter(|other| other.models.contains(model))
                .count()
        };
        let scarcest = backend
            .models
            .iter()
            .map(|model| (serving(model), model))
            .min();
        let (remaining, model) = match scarcest {
            Some((remaining, model)) => (remaining, text(model)),
            None => (others().count(), "all models".to_owned()),
        };
        match remaining {
            0 => Self::NoneRemains(model),
            1 => Self::OneRemains(model),
            _ => Self::None,
        }
    }

    /// Whether this key confirms the drain. If no other backend remains, only the capital letter does, so that
    /// a user does not confirm the drain by habit.
    pub(super) fn is_confirmed_by(&self, key: KeyCode) -> bool {
        match self {
            Self::NoneRemains(_) => key == KeyCode::Char('Y'),
            Self::None | Self::OneRemains(_) => matches!(key, KeyCode::Char('y' | 'Y')),
        }
    }

    /// The question that the user must answer before a drain.
    pub(super) fn question(&self, backend: &str) -> String {
        let backend = text(backend);
        match self {
            Self::None => format!("drain {backend}? y / n"),
            Self::OneRemains(model) => {
                format!("drain {backend}? ONE backend remains for {model}. y / n")
            }
            Self::NoneRemains(model) => {
                format!("drain {backend}? It is the LAST for {model}: requests are refused. Y / n")
            }
        }
    }
}

/// The title and the lines of text about one backend, with its active verdicts.
pub(super) fn backend_details(
    backend: &BackendSummary,
    verdicts: &[Verdict],
) -> (String, Vec<String>) {
    let reason = backend
        .condition_reason
        .as_deref()
        .or(backend.reason.as_deref());
    let failure = match &backend.scrape_error {
        Some(error) => format!(", the last failed: {}", text(error)),
        None => String::new(),
    };
    let mut lines = vec![
        format!("URL        {}", text(&backend.url)),
        format!("models     {}", text(&backend.models.join(", "))),
        format!(
            "state      {}, circuit breaker {}",
            text(&backend.state),
            backend.breaker
        ),
        format!(
            "condition  {}: {}",
            backend.condition_word(),
            text(reason.unwrap_or_default())
        ),
        format!(
            "requests   {} running, {} waiting, {} of this gateway",
            count(backend.running),
            count(backend.waiting),
            backend.in_flight
        ),
        format!(
            "last min   TTFT {} ({} streams), {} attempts failed ({}), {}",
            seconds(backend.ttft_seconds),
            backend.ended_streams,
            backend.failed_attempts,
            percent(backend.failed_share),
            status_counts(&backend.client_errors)
        ),
        format!("KV usage   {}", percent(backend.kv_usage)),
        format!(
            "scrape     {} ago{failure}",
            seconds(backend.scrape_age_seconds)
        ),
    ];
    if let Some(drain) = &backend.drain {
        let by = text(&drain.by);
        let reason = text(drain.reason.as_deref().unwrap_or_default());
        lines.push(format!(
            "drained    by {by} {} ago: {reason}",
            span(drain.age_seconds)
        ));
    }
    let own_verdicts = verdicts
        .iter()
        .filter(|verdict| verdict.backend == backend.name);
    lines.extend(own_verdicts.flat_map(verdict_lines));
    (text(&backend.name), lines)
}

/// The lines about a verdict, after an empty line: its meaning and its remedy.
fn verdict_lines(verdict: &Verdict) -> [String; 3] {
    let severity = verdict.severity.as_str();
    [
        String::new(),
        format!("{severity}: {}", text(&verdict.meaning)),
        format!("-> {}", text(&verdict.remedy)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_api::BackendFacts;

    #[test]
    fn the_scarcest_model_determines_the_risk() {
        let backend = |name: &str, models: &[&str], up| BackendSummary {
            name: name.into(),
            facts: BackendFacts {
                models: models.iter().map(ToString::to_string).collect(),
                up,
                ..BackendFacts::default()
            },
            ..BackendSummary::default()
        };
        let fleet = [
            backend("a", &["small", "large"], true),
            backend("b", &["small"], true),
            backend("c", &["small"], true),
            backend("d", &["large"], false),
        ];
        assert_eq!(
            DrainRisk::of(&fleet[0], &fleet),
            DrainRisk::NoneRemains("large".into())
        );
        assert_eq!(DrainRisk::of(&fleet[1], &fleet), DrainRisk::None);
        assert_eq!(DrainRisk::of(&fleet[3], &fleet), DrainRisk::None);
        assert_eq!(
            DrainRisk::of(&fleet[1], &fleet[1..]),
            DrainRisk::OneRemains("small".into())
        );
        let unknown = [backend("a", &[], true)];
        assert_eq!(
            DrainRisk::of(&unknown[0], &unknown),
            DrainRisk::NoneRemains("all models".into())
        );
    }

    #[test]
    fn the_last_backend_needs_a_capital_y() {
        let risk = DrainRisk::NoneRemains("tiny".into());
        assert!(risk.question("gpu-0").contains("LAST for tiny"));
        assert!(!risk.is_confirmed_by(KeyCode::Char('y')));
        assert!(risk.is_confirmed_by(KeyCode::Char('Y')));
        assert!(DrainRisk::OneRemains("tiny".into()).is_confirmed_by(KeyCode::Char('y')));
    }
}
