//! Status and metrics of streams that another backend continues.

use crate::metric::{MetricDescriptor, MetricLabel, MetricSource};
use crate::proxy::request::continuation_memory::ContinuationMemory;
use crate::status::{StatusBlock, StatusSource};
use serde::Serialize;
use std::sync::Arc;
use tokenweir_request::continuation::{ContinuationRefusal, InterruptionCause};
use tokenweir_request::record::Continuation;

/// Memory of the data that the gateway keeps to continue open streams at another backend, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ContinuationBytes(pub usize);

impl StatusBlock for ContinuationBytes {
    const KEY: Option<&'static str> = Some("continuation_bytes");
}

/// The metrics of streams that another backend continues.
pub const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor::new(
        "tokenweir_stream_continuations_total",
        "Streams that another backend continued after output was sent, by cause.",
        &[MetricLabel::fixed("cause", || InterruptionCause::NAMES.to_vec())],
        MetricSource::Record(|record, emit| {
            for continuation in &record.continuations.begun {
                emit(&[continuation.cause.as_str()], 1.0);
            }
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_stream_continuations_refused_total",
        "Interrupted streams that no other backend continued, by reason.",
        &[MetricLabel::fixed("reason", || ContinuationRefusal::NAMES.to_vec())],
        MetricSource::RecordEvent(|record| {
            record.continuations.refusal.map(ContinuationRefusal::as_str)
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_stream_continuation_seconds_total",
        "Time from the interruption of a stream to its next output, if another backend continued it.",
        &[],
        MetricSource::RecordValue(|record| {
            let gap: f64 = record.continuations.begun.iter().filter_map(Continuation::gap).sum();
            (gap > 0.0).then_some(gap)
        }),
    ),
    MetricDescriptor::value(
        "tokenweir_stream_continuation_memory_bytes",
        "Memory for the continuation of the open streams by another backend (limits.continuation_memory).",
        |status| {
            let ContinuationBytes(bytes) = status.blocks.get_or_default();
            Some(bytes as f64)
        },
    ),
];

/// Returns a function that adds the memory of this data.
pub fn status_source(memory: Arc<ContinuationMemory>) -> StatusSource {
    Arc::new(move |status, _| status.blocks.add(ContinuationBytes(memory.used_bytes())))
}
