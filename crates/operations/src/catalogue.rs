//! The metrics that the gateway exports, as far as the generated files need to know them. The gateway
//! builds this value from its own table of metrics.

/// All metrics of the gateway.
#[derive(Debug, Clone, Default)]
pub struct Catalogue(pub Vec<Metric>);

/// One metric.
#[derive(Debug, Clone)]
pub struct Metric {
    /// The name as Prometheus has it, without the suffixes of a histogram's series.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The type.
    pub kind: Kind,
    /// The labels, in order.
    pub labels: Vec<Label>,
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A counter.
    Counter,
    /// A gauge.
    Gauge,
    /// A histogram with these default bounds.
    Histogram(&'static [f64]),
}

/// One label of a metric.
#[derive(Debug, Clone)]
pub struct Label {
    /// The name.
    pub name: &'static str,
    /// The set of values, in Markdown.
    pub values: String,
}

/// The name of a metric without the suffix of a histogram's series.
pub fn family(name: &str) -> &str {
    let suffixes = ["_bucket", "_sum", "_count"];
    suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

// === impl Catalogue ===

impl Catalogue {
    /// Whether the metric or the histogram of this series has a label.
    pub(crate) fn has_label(&self, series: &str, label: &str) -> bool {
        let is_it = |known: &str| known == series || known == family(series);
        let metric = self.0.iter().find(|metric| is_it(metric.name));
        metric.is_some_and(|metric| metric.labels.iter().any(|known| known.name == label))
    }
}
