//! The types of the metrics catalogue: a row per metric with its labels, whose values come from
//! closed sets.

use super::status::StatusSnapshot;
use std::time::Duration;
use tokenweir_core::engine_metrics::ScrapeError;
use tokenweir_core::histogram::HistogramSnapshot;
use tokenweir_core::metric_kind::MetricKind;
use tokenweir_core::record::{ModelLabel, Outcome, RequestRecord};
use tokenweir_core::slo::Objective;

/// One metric of the catalogue.
pub struct MetricDescriptor {
    /// The name in the Prometheus exposition format.
    pub name: &'static str,
    /// The help text: a short sentence or two.
    pub help: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// The labels, in the order in which values are emitted.
    pub labels: &'static [MetricLabel],
    /// The source of the values.
    pub read: MetricSource,
}

/// Receives one value and its label values, in the order of the row's labels.
pub type MetricEmitter<'a> = &'a mut dyn FnMut(&[&str], f64);

/// The source of the values of a metric.
#[derive(Clone, Copy)]
pub enum MetricSource {
    /// A stream at its first output. The record has no later data.
    FirstOutput(fn(&RequestRecord, MetricEmitter<'_>)),
    /// A finished request.
    Record(fn(&RequestRecord, MetricEmitter<'_>)),
    /// A finished request and an objective of `slos`.
    RecordPerObjective(fn(&Objective, &RequestRecord, MetricEmitter<'_>)),
    /// An objective of `slos`.
    Objective(fn(&Objective, MetricEmitter<'_>)),
    /// All values of a finished request at once, labelled by model and backend.
    RecordHistogram(fn(&RequestRecord) -> Option<HistogramSnapshot<'_>>),
    /// A completed scrape of a backend's metrics.
    Scrape(fn(&ScrapeResult<'_>, MetricEmitter<'_>)),
    /// The state of the gateway when the metrics page is read.
    Status(fn(&StatusSnapshot, MetricEmitter<'_>)),
}

/// The result of one scrape of a backend's metrics.
#[derive(Debug, Clone, Copy)]
pub struct ScrapeResult<'a> {
    /// The name of the backend.
    pub backend: &'a str,
    /// The duration of the scrape.
    pub took: Duration,
    /// Why the scrape failed. `None`: it succeeded.
    pub error: Option<ScrapeError>,
}

/// A label of a metric. A row of the catalogue defines its labels, except those that metrics of
/// several areas have: these are constants of this type.
///
/// The values of a label are from a closed set that no client can extend. Models and tenants that
/// the configuration does not name are bounded in number.
#[derive(Debug, Clone, Copy)]
pub struct MetricLabel {
    /// The name in the exposition format.
    pub name: &'static str,
    values: LabelValues,
}

/// The values of a label.
#[derive(Debug, Clone, Copy)]
enum LabelValues {
    /// All values, each of which has series before the first request.
    Fixed(fn() -> Vec<&'static str>),
    /// Values that the configuration, the backends or the requests determine.
    Variable {
        /// The values that have series before the first request.
        seeds: fn(&KnownLabelValues) -> Vec<String>,
        /// A description of all values, in Markdown.
        description: fn() -> String,
    },
}

/// Values of the labels whose sets are known only at run time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownLabelValues {
    /// Models whose series exist before their first request.
    pub models: Vec<String>,
    /// Names of the registered backends.
    pub backends: Vec<String>,
    /// Tiers of the configuration.
    pub tiers: Vec<String>,
    /// Tenants of the keys file that have a label value.
    pub tenants: Vec<String>,
    /// Names of the objectives in `slos`.
    pub slos: Vec<String>,
}

/// The label values of counts that their owner lists by label value.
pub(super) fn label_values<const N: usize>(counts: [(&'static str, u64); N]) -> Vec<&'static str> {
    counts.map(|(value, _)| value).to_vec()
}

/// Emits counts that their owner lists by label value.
pub(super) fn emit_counts<const N: usize>(
    counts: [(&'static str, u64); N],
    emit: MetricEmitter<'_>,
) {
    for (value, count) in counts {
        emit(&[value], count as f64);
    }
}

// === impl MetricLabel ===

impl MetricLabel {
    /// A model that the configuration names, one of the first `metrics.max_models` others that
    /// backends serve, or `_other`.
    pub const MODEL: Self = Self::variable(
        "gen_ai_request_model",
        |known| match known.models.as_slice() {
            [] => vec![ModelLabel::OTHER.to_owned()],
            models => models.to_vec(),
        },
        || {
            "a model of the configuration, one of the first further models that backends list \
             (`metrics.max_models`), or `_other`"
                .to_owned()
        },
    );
    /// A registered backend, or one of the last removed ones.
    pub const BACKEND: Self = Self::variable(
        "backend",
        |known| known.backends.clone(),
        || "the name of a backend".to_owned(),
    );
    /// A tier of the configuration, or `_other`. Empty if the request has no tier.
    pub const TIER: Self = Self::variable(
        "tier",
        |known| [&[String::new()], known.tiers.as_slice()].concat(),
        || "a tier of the configuration, `_other`, or empty".to_owned(),
    );
    /// [`Outcome::as_str`]
    pub const OUTCOME: Self = Self::fixed("outcome", || Outcome::ALL.map(Outcome::as_str).to_vec());
    /// One of [`MetricLabel::TOKEN_TYPES`].
    pub const TOKEN_TYPE: Self = Self::fixed("type", || Self::TOKEN_TYPES.to_vec());
    /// The types of tokens.
    pub const TOKEN_TYPES: [&str; 4] = ["input", "output", "cached_input", "reasoning"];

    /// A label with a fixed set of values, each of which has series before the first request.
    pub const fn fixed(name: &'static str, values: fn() -> Vec<&'static str>) -> Self {
        Self { name, values: LabelValues::Fixed(values) }
    }

    /// A label whose set of values is known only at run time: `seeds` returns the values that have
    /// series before the first request, and `description` describes all values in Markdown.
    pub const fn variable(
        name: &'static str,
        seeds: fn(&KnownLabelValues) -> Vec<String>,
        description: fn() -> String,
    ) -> Self {
        Self { name, values: LabelValues::Variable { seeds, description } }
    }

    /// The values that have series before the first request.
    pub fn seeds(&self, known: &KnownLabelValues) -> Vec<String> {
        match self.values {
            LabelValues::Fixed(values) => values().into_iter().map(str::to_owned).collect(),
            LabelValues::Variable { seeds, .. } => seeds(known),
        }
    }

    /// A description of all values, in Markdown.
    pub fn description(&self) -> String {
        match self.values {
            LabelValues::Fixed(values) => {
                let quoted = values().into_iter().map(|value| format!("`{value}`"));
                quoted.collect::<Vec<_>>().join(" ")
            }
            LabelValues::Variable { description, .. } => description(),
        }
    }
}

// === impl MetricDescriptor ===

impl MetricDescriptor {
    /// All combinations of label values that have a series before the first request.
    pub fn seeds(&self, known: &KnownLabelValues) -> Vec<Vec<String>> {
        let mut combinations = vec![Vec::new()];
        for label in self.labels {
            let values = label.seeds(known);
            let extend = |prefix: &Vec<String>| {
                let append =
                    |value: &String| [prefix.as_slice(), std::slice::from_ref(value)].concat();
                values.iter().map(append).collect::<Vec<_>>()
            };
            combinations = combinations.iter().flat_map(extend).collect();
        }
        combinations
    }
}
