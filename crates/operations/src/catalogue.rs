//! The catalogue of the gateway's metrics, with the data that generated files need. The gateway builds it from
//! its table of metrics.

use serde::Serialize;

/// All metrics, in the order of the metrics reference.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MetricCatalogue(pub Vec<MetricDescription>);

/// Name, help, labels and level of one metric.
#[derive(Debug, Clone, Serialize)]
pub struct MetricDescription {
    /// The name of the metric in Prometheus. For a histogram: the name without `_bucket`, `_sum`
    /// and `_count`.
    pub name: &'static str,
    /// The help text of the metric.
    pub help: &'static str,
    /// The kind of the metric: counter, gauge or histogram.
    pub kind: &'static str,
    /// The labels of the metric, in the order of export.
    pub labels: Vec<LabelDescription>,
    /// The lowest value of `metrics.level` at which the metric has series.
    pub level: &'static str,
    /// Whether the series of the metric have no label `backend` at the default level.
    pub is_folded: bool,
}

/// Name and values of one label.
#[derive(Debug, Clone, Serialize)]
pub struct LabelDescription {
    /// The name of the label, such as `backend`.
    pub name: &'static str,
    /// A description of the values of the label, in Markdown.
    pub values: String,
}

pub(super) fn print(metrics: &MetricCatalogue) -> String {
    // Serialization fails only for maps whose keys are not texts, and the catalogue has no such map.
    serde_json::to_string_pretty(metrics).unwrap_or_default() + "\n"
}
