//! The catalogue of metrics, as far as generated files need it. The gateway builds it from its own
//! table of metrics.

use tokenweir_core::metric_kind::MetricKind;

/// All metrics of the gateway.
#[derive(Debug, Clone, Default)]
pub struct MetricCatalogue(pub Vec<MetricDescription>);

/// One metric.
#[derive(Debug, Clone)]
pub struct MetricDescription {
    /// The name in Prometheus, without the suffixes of a histogram's series.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The labels, in order.
    pub labels: Vec<LabelDescription>,
}

/// One label of a metric.
#[derive(Debug, Clone)]
pub struct LabelDescription {
    /// The name.
    pub name: &'static str,
    /// A description of the values, in Markdown.
    pub values: String,
}

/// The name of a metric without the suffix of a histogram's series.
pub fn family(name: &str) -> &str {
    let suffixes = ["_bucket", "_sum", "_count"];
    suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

// === impl Catalogue ===

impl MetricCatalogue {
    /// Whether the metric of a series has a label.
    pub(crate) fn has_label(&self, series: &str, label: &str) -> bool {
        let is_metric = |known: &str| known == series || known == family(series);
        let metric = self.0.iter().find(|metric| is_metric(metric.name));
        metric.is_some_and(|metric| metric.labels.iter().any(|known| known.name == label))
    }
}
