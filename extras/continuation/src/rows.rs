//! Status and metrics of streams that another backend continues.

use serde::Serialize;
use serde_json::{Value, json};
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusBlock;
use tokenweir_gateway::telemetry::decision_log::{DecisionLogEntry, round_significant};
use tokenweir_request::continuation::{
    Continuation, ContinuationRefusal, Continuations, InterruptionCause,
};

/// Memory of the data that the gateway keeps to continue open streams at another backend, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ContinuationBytes(pub usize);

impl StatusBlock for ContinuationBytes {
    const KEY: Option<&'static str> = Some("continuation_bytes");
}

/// The metrics of streams that another backend continues.
pub const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_stream_continuations_total",
        "Streams that another backend continued after output was sent, by cause.",
        &[fixed("cause", InterruptionCause::NAMES)],
        Record(|record, emit| {
            for continuation in &Continuations::of(record).begun {
                emit(&[continuation.cause.as_str()], 1.0);
            }
        }),
    ),
    row(
        "tokenweir_stream_continuations_refused_total",
        "Interrupted streams that no other backend continued, by reason.",
        &[fixed("reason", ContinuationRefusal::NAMES)],
        RecordEvent(|record| {
            Continuations::of(record)
                .refusal
                .map(ContinuationRefusal::as_str)
        }),
    ),
    row(
        "tokenweir_stream_continuation_seconds_total",
        "Time from the interruption of a stream to its next output, if another backend continued it.",
        &[],
        RecordValue(|record| {
            let gap: f64 = Continuations::of(record)
                .begun
                .iter()
                .filter_map(Continuation::gap)
                .sum();
            (gap > 0.0).then_some(gap)
        }),
    ),
    value(
        "tokenweir_stream_continuation_memory_bytes",
        "Memory for the continuation of the open streams by another backend (limits.continuation_memory).",
        |status| {
            let ContinuationBytes(bytes) = status.blocks.get_or_default();
            Some(bytes as f64)
        },
    ),
];

/// Adds the continuations of a stream to the JSON of its decision.
pub fn add_to_decision(entry: &DecisionLogEntry, detail: &mut Value) {
    let continuations = entry.notes.get::<Continuations>();
    let begun = continuations
        .iter()
        .flat_map(|continuations| &continuations.begun);
    let refusal = continuations.and_then(|continuations| continuations.refusal);
    detail["continuations"] = begun.map(to_json).collect();
    detail["continuation_refused"] = refusal.map(ContinuationRefusal::as_str).into();
}

fn to_json(continuation: &Continuation) -> Value {
    json!({
        "cause": continuation.cause.as_str(),
        "tokens": continuation.tokens,
        "gap_seconds": continuation.gap().map(round_significant),
    })
}
