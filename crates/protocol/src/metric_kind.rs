//! The kinds of metrics that both Prometheus and OpenTelemetry define.

/// The kind of a metric, which determines its exposition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricKind {
    /// A value that never decreases while the process runs.
    Counter,
    /// A value that can go up and down.
    Gauge,
    /// A distribution, as the number of values in each bucket. The field has the default upper bounds of the
    /// buckets.
    Histogram(&'static [f64]),
}

impl MetricKind {
    /// Name of the kind in the Prometheus and OpenMetrics text formats.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }

    /// The default upper bounds of the buckets. Empty unless the metric is a histogram.
    pub const fn default_bounds(self) -> &'static [f64] {
        match self {
            Self::Counter | Self::Gauge => &[],
            Self::Histogram(bounds) => bounds,
        }
    }
}
