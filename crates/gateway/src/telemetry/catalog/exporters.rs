//! Metrics of the exporters and logs of the gateway (spans, trace capture, access log, payload log,
//! webhooks), of the CPU time of telemetry, and of the version of the gateway.

use super::super::cpu_time::TelemetryPart;
use super::super::metric::{MetricDescriptor, MetricLabel, MetricSource};
use crate::webhook::WebhookStatus;

/// The label with the version of the gateway.
const VERSION: MetricLabel = MetricLabel::variable(
    "version",
    |_| vec![env!("CARGO_PKG_VERSION").to_owned()],
    || "the version of the gateway".to_owned(),
);

pub(super) const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor::counts(
        "tokenweir_otel_spans_total",
        "Spans, by result. Dropped spans are queued - exported - failed.",
        &[MetricLabel::counted("result", |status| status.spans.by_result().to_vec())],
    ),
    MetricDescriptor::counts(
        "tokenweir_capture_records_total",
        "Records of the trace capture, by whether they were written or dropped.",
        &[MetricLabel::counted("result", |status| status.trace_capture.by_result().to_vec())],
    ),
    MetricDescriptor::counts(
        "tokenweir_access_log_lines_total",
        "Access log lines, by result. Dropped: the log reader was too slow or a write failed.",
        &[MetricLabel::counted("result", |status| status.access_log.by_result().to_vec())],
    ),
    MetricDescriptor::counts(
        "tokenweir_content_records_total",
        "Requests selected for the payload log (log.payloads), by result.",
        &[MetricLabel::counted("result", |status| status.payload_log.by_result().to_vec())],
    ),
    MetricDescriptor::new(
        "tokenweir_telemetry_cpu_seconds_total",
        "CPU time of telemetry by kind of work, without the observation of responses and the connections to collectors.",
        &[MetricLabel::fixed("part", || TelemetryPart::NAMES.to_vec())],
        MetricSource::Status(|status, emit| {
            for part in TelemetryPart::ALL {
                emit(&[part.as_str()], status.telemetry_cpu.of(part).as_secs_f64());
            }
        }),
    ),
    MetricDescriptor::counts(
        "tokenweir_webhook_messages_total",
        "Messages to the webhooks, by result.",
        &[MetricLabel::counted("result", |status| {
            let sum = |count: fn(&WebhookStatus) -> u64| status.webhooks.iter().map(count).sum();
            vec![("ok", sum(|webhook| webhook.ok)), ("failed", sum(|webhook| webhook.failed))]
        })],
    ),
    MetricDescriptor::new(
        "tokenweir_build_info",
        "Always 1. The label is the gateway's version.",
        &[VERSION],
        MetricSource::Status(|_, emit| emit(&[env!("CARGO_PKG_VERSION")], 1.0)),
    ),
];
