//! The latency histograms of a run, and their summary.

use serde::{Deserialize, Serialize};
use tokenweir_protocol::histogram::DurationHistogram;

/// A histogram of latencies. The relative error of a quantile is at most 0.2 %.
pub type LatencyHistogram = DurationHistogram<8>;

/// Summary of a latency histogram, in seconds. All fields are 0 for an empty histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of recorded latencies.
    pub count: u64,
    /// Mean latency.
    pub mean: f64,
    /// Median latency.
    pub p50: f64,
    /// 90th percentile of the latencies.
    pub p90: f64,
    /// 95th percentile of the latencies.
    pub p95: f64,
    /// 99th percentile of the latencies.
    pub p99: f64,
    /// Longest latency.
    pub max: f64,
}

impl From<&LatencyHistogram> for LatencySummary {
    fn from(histogram: &LatencyHistogram) -> Self {
        Self {
            count: histogram.count(),
            mean: histogram.mean(),
            p50: histogram.quantile(0.5),
            p90: histogram.quantile(0.9),
            p95: histogram.quantile(0.95),
            p99: histogram.quantile(0.99),
            max: histogram.max(),
        }
    }
}
