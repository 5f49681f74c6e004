//! The types of the metrics catalogue: one row per metric, with the labels of the metric and the
//! source of its values. The values of each label come from a set that clients cannot extend.

use super::status::{BackendStatusSnapshot, StatusSnapshot};
use std::time::Duration;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_protocol::histogram::HistogramSnapshot;
use tokenweir_protocol::metric_kind::MetricKind;
use tokenweir_request::record::{ModelLabel, Outcome, RequestRecord};
use tokenweir_request::slo::Objective;

/// One metric of the catalogue.
pub struct MetricDescriptor {
    /// The name in the Prometheus exposition format.
    pub name: &'static str,
    /// The help text on the metrics page.
    pub help: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// The labels, in the order in which a [`MetricEmitter`] receives the label values.
    pub labels: &'static [MetricLabel],
    /// How the values are read.
    pub read: MetricSource,
}

/// A callback for one value of a metric. Its arguments are the label values, in the order of
/// [`MetricDescriptor::labels`], and the value.
pub type MetricEmitter<'a> = &'a mut dyn FnMut(&[&str], f64);

/// A callback for one value of an engine. Its arguments are the label values after the backend, and
/// the value. `None`: the engine does not report the value.
pub type EngineEmitter<'a> = &'a mut dyn FnMut(&[&str], Option<f64>);

/// The event or state from which the values of a metric are read, and the function that reads them.
#[derive(Clone, Copy)]
pub enum MetricSource {
    /// Values are read from the record of a stream at its first output, when the record has no
    /// later data.
    FirstOutput(fn(&RequestRecord, MetricEmitter<'_>)),
    /// Values are read from the record of each finished request.
    Record(fn(&RequestRecord, MetricEmitter<'_>)),
    /// Values are read from the record of each finished request, once for each objective of `slos`.
    RecordPerObjective(fn(&Objective, &RequestRecord, MetricEmitter<'_>)),
    /// Values are read from each objective of `slos` when the metrics page is read.
    Objective(fn(&Objective, MetricEmitter<'_>)),
    /// A histogram of many values is read from the record of each finished request. The labels of the
    /// metric are the model and the backend, or the metric has no labels.
    RecordHistogram(fn(&RequestRecord) -> Option<HistogramSnapshot<'_>>),
    /// Values are read from the result of each scrape of a backend's metrics page.
    Scrape(fn(&ScrapeResult<'_>, MetricEmitter<'_>)),
    /// The delay of each tick of a timer of the runtime, in seconds. The metric has no labels.
    SchedulingDelay,
    /// Values are read from the last successful scrape of each backend when the metrics page is
    /// read. The first label is the backend. A value that the engine does not report is omitted.
    Engine(fn(&EngineLoad, EngineEmitter<'_>)),
    /// One value of each registered backend is read when the metrics page is read. `None`: the
    /// value is not known. The only label is the backend.
    Backend(fn(&BackendStatusSnapshot) -> Option<f64>),
    /// One value is read from the state of the gateway when the metrics page is read. `None`: the metric
    /// has no value. The metric has no labels.
    Value(fn(&StatusSnapshot) -> Option<f64>),
    /// Values are read from the state of the gateway when the metrics page is read.
    Status(fn(&StatusSnapshot, MetricEmitter<'_>)),
}

impl MetricSource {
    /// Whether values are read from the records of requests.
    pub(super) fn reads_record(&self) -> bool {
        matches!(
            self,
            Self::FirstOutput(_)
                | Self::Record(_)
                | Self::RecordPerObjective(_)
                | Self::RecordHistogram(_)
        )
    }
}

/// The result of one scrape of a backend's metrics page.
#[derive(Debug, Clone, Copy)]
pub struct ScrapeResult<'a> {
    /// The name of the backend.
    pub backend: &'a str,
    /// The duration of the scrape.
    pub took: Duration,
    /// Why the scrape failed. `None`: it succeeded.
    pub error: Option<ScrapeError>,
}

/// A label of a metric. Labels that several files of the catalogue use are constants of this type.
///
/// The values of a label are from a closed set that no client can extend. Models and tenants that
/// the configuration does not name are bounded in number.
#[derive(Debug, Clone, Copy)]
pub struct MetricLabel {
    /// The name of the label in the Prometheus exposition format.
    pub name: &'static str,
    values: LabelValues,
}

/// The values of a label.
#[derive(Debug, Clone, Copy)]
enum LabelValues {
    /// The label has exactly the values that the function returns. Each of these values has series
    /// before the first request.
    Fixed(fn() -> Vec<&'static str>),
    /// The configuration, the backends or the requests determine the values.
    Variable {
        /// Returns the values that have series before the first request.
        seeds: fn(&KnownLabelValues) -> Vec<String>,
        /// Returns a description of all values, in Markdown.
        description: fn() -> String,
    },
}

/// The label values that are known only at run time and have series before the first request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownLabelValues {
    /// Models whose series exist before their first request.
    pub models: Vec<String>,
    /// Names of the registered backends.
    pub backends: Vec<String>,
    /// Names of the tenant tiers that the configuration defines.
    pub tiers: Vec<String>,
    /// Tenants of the keys file that have a label value of their own.
    pub tenants: Vec<String>,
    /// Names of the objectives in the configuration section `slos`.
    pub slos: Vec<String>,
}

/// The label values of `counts`, which are pairs of a label value and a count.
pub(super) fn label_values<const N: usize>(counts: [(&'static str, u64); N]) -> Vec<&'static str> {
    counts.map(|(value, _)| value).to_vec()
}

/// Emits `counts`, which are pairs of a label value and a count, for a metric with one label.
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
    /// The model of a request. Its values are the models that the configuration names, the first
    /// `metrics.max_models` further models that backends serve, and `_other` for all other models.
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
    /// The name of a backend that is registered now or was removed recently.
    pub const BACKEND: Self = Self::variable(
        "backend",
        |known| known.backends.clone(),
        || "the name of a backend".to_owned(),
    );
    /// The tier of a request. Its values are the tiers that the configuration names, `_other` for
    /// an unknown tier, and the empty string for a request without a tier.
    pub const TIER: Self = Self::variable(
        "tier",
        |known| [&[String::new()], known.tiers.as_slice()].concat(),
        || "a tier of the configuration, `_other`, or empty".to_owned(),
    );
    /// The outcome of a request: [`Outcome::as_str`].
    pub const OUTCOME: Self = Self::fixed("outcome", || Outcome::NAMES.to_vec());
    /// The type of the counted tokens, one of [`MetricLabel::TOKEN_TYPES`].
    pub const TOKEN_TYPE: Self = Self::fixed("type", || Self::TOKEN_TYPES.to_vec());
    /// The values of [`MetricLabel::TOKEN_TYPE`].
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
    /// A counter without labels, whose value `read` takes from the state of the gateway.
    pub const fn counter(
        name: &'static str,
        help: &'static str,
        read: fn(&StatusSnapshot) -> Option<f64>,
    ) -> Self {
        let (kind, read) = (MetricKind::Counter, MetricSource::Value(read));
        Self { name, help, kind, labels: &[], read }
    }

    /// A gauge without labels, whose value `read` takes from the state of the gateway.
    pub const fn gauge(
        name: &'static str,
        help: &'static str,
        read: fn(&StatusSnapshot) -> Option<f64>,
    ) -> Self {
        Self { kind: MetricKind::Gauge, ..Self::counter(name, help, read) }
    }

    /// A counter with one value for each backend.
    pub const fn backend_counter(
        name: &'static str,
        help: &'static str,
        read: fn(&BackendStatusSnapshot) -> Option<f64>,
    ) -> Self {
        let (kind, read) = (MetricKind::Counter, MetricSource::Backend(read));
        Self { name, help, kind, labels: &[MetricLabel::BACKEND], read }
    }

    /// A gauge with one value for each backend.
    pub const fn backend_gauge(
        name: &'static str,
        help: &'static str,
        read: fn(&BackendStatusSnapshot) -> Option<f64>,
    ) -> Self {
        Self { kind: MetricKind::Gauge, ..Self::backend_counter(name, help, read) }
    }

    /// All combinations of label values that have a series before the first request. Each
    /// combination has the order of `labels`.
    ///
    /// Such a series begins with 0, so that `rate()` counts its first increase. A histogram with labels
    /// has no such series. A metric with the label `backend` and a further label has none either.
    /// Otherwise these series would be most series of the metrics page.
    pub fn seeds(&self, known: &KnownLabelValues) -> Vec<Vec<String>> {
        let has_backend = self.labels.iter().any(|label| label.name == MetricLabel::BACKEND.name);
        let is_histogram = matches!(self.kind, MetricKind::Histogram(_)) && !self.labels.is_empty();
        if is_histogram || has_backend && self.labels.len() > 1 {
            return Vec::new();
        }
        let mut combinations = vec![Vec::new()];
        for label in self.labels {
            let values = label.seeds(known);
            let append_values = |prefix: &Vec<String>| {
                let append_value =
                    |value: &String| [prefix.as_slice(), std::slice::from_ref(value)].concat();
                values.iter().map(append_value).collect::<Vec<_>>()
            };
            combinations = combinations.iter().flat_map(append_values).collect();
        }
        combinations
    }
}
