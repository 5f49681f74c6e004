//! The telemetry of a simulated engine: request metrics, the metrics page, KV events and spans.

mod engine_telemetry;
mod kv_events;
mod spans;

mod metrics_page;

pub use engine_telemetry::{EngineHistogram, EngineTelemetry};
pub use kv_events::KvEventPorts;
pub(crate) use kv_events::{KvEventPublisher, SequenceOrigin};
pub use metrics_page::{MetricsSource, render as render_metrics_page};
pub(crate) use spans::{RequestSpan, RequestSpanExporter};
