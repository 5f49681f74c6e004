//! The labels of metrics. The values of each label come from a set that clients cannot extend.

use crate::status::StatusSnapshot;
use tokenweir_engine::address::BackendId;
use tokenweir_request::record::{ModelLabel, Outcome, RequestRecord};

/// A label of a metric. Labels that several files of the catalogue use are constants of this type.
///
/// The values of a label are from a closed set that no client can extend. Models and tenants that
/// the configuration does not name are bounded in number.
#[derive(Debug, Clone, Copy)]
pub struct MetricLabel {
    /// The name of the label in the Prometheus exposition format.
    pub name: &'static str,
    values: LabelValues,
    /// Reads the label value of a request from the record of the request. `None`: the request has
    /// no value for this label.
    pub(super) read: LabelReader,
    /// Describes all values, in Markdown. `None`: the description follows from the values.
    describe: Option<fn() -> String>,
}

type LabelReader = fn(&RequestRecord) -> Option<&str>;

/// Where the values of a label come from.
#[derive(Debug, Clone, Copy)]
enum LabelValues {
    /// Each of these values has series before the first request.
    Fixed(&'static [&'static str]),
    /// Like `Fixed`, with the values that the function returns.
    Computed(fn() -> Vec<&'static str>),
    /// The label has a fixed set of values, as [`counted`] describes. The function returns each
    /// value with its count.
    Counted(LabelCounts),
    /// The configuration, the backends or the requests determine the values.
    Variable {
        /// Returns the values that have series before the first request.
        seeds: fn(&KnownLabelValues) -> Vec<String>,
        /// A description of all values, in Markdown.
        description: &'static str,
    },
}

/// Label values that are known only at run time and that have series before the first request.
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

/// Reads the values of a label, each with its count, from the state of the gateway. The set of returned values
/// must not depend on the state.
type LabelCounts = fn(&StatusSnapshot) -> Vec<(&'static str, u64)>;

/// The model of a request. Its values are the models that the configuration names, the first
/// `metrics.max_models` further models that backends serve, and `_other` for all other models.
pub const MODEL: MetricLabel = variable(
    "gen_ai_request_model",
    |known| match known.models.as_slice() {
        [] => vec![ModelLabel::OTHER.to_owned()],
        models => models.to_vec(),
    },
    "a model of the configuration, one of the first further models that backends list \
     (`metrics.max_models`), or `_other`",
)
.of_request(|record| Some(record.model.as_str()));
/// The name of a backend that is registered now or was removed recently.
pub const BACKEND: MetricLabel = variable(
    "backend",
    |known| known.backends.clone(),
    "the name of a backend",
)
.of_request(|record| record.backend().map(BackendId::as_str));
/// The tier of a request. Its values are the tiers that the configuration names, `_other` for
/// an unknown tier, and the empty string for a request without a tier.
pub const TIER: MetricLabel = variable(
    "tier",
    |known| [&[String::new()], known.tiers.as_slice()].concat(),
    "a tier of the configuration, `_other`, or empty",
)
.of_request(|record| Some(record.tier.as_str()));
/// The outcome of a request: [`Outcome::as_str`].
pub const OUTCOME: MetricLabel =
    fixed("outcome", Outcome::NAMES).of_request(|record| Some(record.outcome.as_str()));
/// The label that tells input, output, cached and reasoning tokens apart.
pub const TOKEN_TYPE: MetricLabel = fixed("type", &TOKEN_TYPES);
/// The values of the label `type`.
pub const TOKEN_TYPES: [&str; 4] = ["input", "output", "cached_input", "reasoning"];

/// Creates a label with a fixed set of values, each of which has series before the first
/// request.
pub const fn fixed(name: &'static str, values: &'static [&'static str]) -> MetricLabel {
    label(name, LabelValues::Fixed(values))
}

/// Like [`fixed`], for values that a function returns.
pub const fn computed(name: &'static str, values: fn() -> Vec<&'static str>) -> MetricLabel {
    label(name, LabelValues::Computed(values))
}

/// Creates a label with a fixed set of values. `counts` reads the values, each with its count,
/// from the state of the gateway.
pub const fn counted(name: &'static str, counts: LabelCounts) -> MetricLabel {
    label(name, LabelValues::Counted(counts))
}

/// Creates a label whose set of values is known only at run time: `seeds` returns the values
/// that have series before the first request, and `description` describes all values in
/// Markdown, unless [`MetricLabel::described_by`] gives a function.
pub const fn variable(
    name: &'static str,
    seeds: fn(&KnownLabelValues) -> Vec<String>,
    description: &'static str,
) -> MetricLabel {
    label(name, LabelValues::Variable { seeds, description })
}

const fn label(name: &'static str, values: LabelValues) -> MetricLabel {
    MetricLabel {
        name,
        values,
        read: |_| None,
        describe: None,
    }
}

impl MetricLabel {
    /// Adds a function that reads the value of the label from the record of a request. If the
    /// function returns `None` for a request, a metric with this label gets no value from the
    /// request.
    pub const fn of_request(self, read: LabelReader) -> Self {
        Self { read, ..self }
    }

    /// Sets the function that describes all values of the label, in Markdown.
    pub const fn described_by(self, describe: fn() -> String) -> Self {
        Self {
            describe: Some(describe),
            ..self
        }
    }

    /// Returns the label values that have series before the first request.
    pub fn seeds(&self, known: &KnownLabelValues) -> Vec<String> {
        match self.values {
            LabelValues::Variable { seeds, .. } => seeds(known),
            _ => self.fixed_values().into_iter().map(str::to_owned).collect(),
        }
    }

    /// Describes all values of the label in Markdown, for the metrics reference.
    pub fn description(&self) -> String {
        if let Some(describe) = self.describe {
            return describe();
        }
        if let LabelValues::Variable { description, .. } = self.values {
            return description.to_owned();
        }
        let quoted = self
            .fixed_values()
            .into_iter()
            .map(|value| format!("`{value}`"));
        quoted.collect::<Vec<_>>().join(" ")
    }

    /// Returns all values of a label with a fixed set of values. Empty for other labels.
    fn fixed_values(&self) -> Vec<&'static str> {
        match self.values {
            LabelValues::Fixed(values) => values.to_vec(),
            LabelValues::Computed(values) => values(),
            LabelValues::Counted(_) => self
                .counts(&StatusSnapshot::default())
                .into_iter()
                .map(|(value, _)| value)
                .collect(),
            LabelValues::Variable { .. } => Vec::new(),
        }
    }

    /// Returns the values of a [`counted`], each with its count. Empty for other
    /// labels.
    pub(super) fn counts(&self, status: &StatusSnapshot) -> Vec<(&'static str, u64)> {
        if let LabelValues::Counted(counts) = self.values {
            counts(status)
        } else {
            Vec::new()
        }
    }
}
