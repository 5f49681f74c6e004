//! Metrics of the span export.

use super::SpanSink;
use super::export::SpanCounts;
use crate::metric::prelude::*;
use crate::status::{StatusSnapshot, StatusSource};
use std::sync::Arc;

/// The rows of the metrics about exported and lost spans.
pub const ROWS: &[MetricDescriptor] = &[counts(
    "tokenweir_otel_spans_total",
    "Spans, by result. Dropped spans are queued - exported - failed.",
    &[counted("result", |status| {
        let counts = spans(status);
        vec![
            ("queued", counts.queued),
            ("exported", counts.exported),
            ("failed", counts.failed),
            ("filtered", counts.filtered),
        ]
    })],
)];

fn spans(status: &StatusSnapshot) -> SpanCounts {
    status.blocks.get_or_default()
}

/// Returns a function that adds the span counts to the status. `spans`: `None` if spans are not exported.
/// `most_waiting`: the capacity of the export queue, in spans.
pub fn status_source(spans: Option<SpanSink>, most_waiting: u64) -> StatusSource {
    Arc::new(move |status, _| {
        let mut counts = SpanCounts::default();
        if let Some(spans) = &spans {
            counts = spans.counts();
            counts.lost = counts.failed + counts.dropped().saturating_sub(most_waiting);
        }
        status.blocks.add(counts);
    })
}
