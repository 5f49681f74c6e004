//! The metrics registry: the series of every metric of the catalogue, and the metrics page.

pub mod buckets;
pub(super) mod exemplar;
pub mod exposition;
pub mod level;
#[cfg(target_os = "linux")]
mod process_metrics;
pub mod prometheus;
mod retired_backends;
pub(super) mod series;

pub use buckets::{BucketOverrides, BucketOverridesError};
pub use exposition::ExpositionFormat;
pub use level::{MetricDetail, MetricsLevel};
pub use prometheus::{MetricsSettings, Prometheus};
