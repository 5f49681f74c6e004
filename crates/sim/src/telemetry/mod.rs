//! The telemetry of a simulated engine: request metrics, the metrics page and spans.

mod engine_telemetry;
mod spans;

mod metrics_page;

pub use engine_telemetry::{EngineTelemetry, PrometheusHistogram};
pub use metrics_page::{MetricNaming, MetricsSource, render as render_metrics_page};
pub(crate) use spans::{RequestSpan, RequestSpanExporter};
