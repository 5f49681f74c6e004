//! Status and metrics of the responses that clients can return to.

use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusBlock;
use tokenweir_gateway::telemetry::decision_log::DecisionLogEntry;
use tokenweir_request::runs::{RunNote, RunOutcome};

/// Memory of the responses that the gateway keeps for clients that may reconnect to them, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ResumeBytes(pub usize);

impl StatusBlock for ResumeBytes {
    const KEY: Option<&'static str> = Some("resume_bytes");
}

/// The metrics of the responses that clients can return to.
pub const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_resume_requests_total",
        "Requests with an Idempotency-Key while streams.resume is on, by result.",
        &[fixed("result", RunOutcome::NAMES)],
        RecordEvent(RunNote::outcome_of),
    ),
    value(
        "tokenweir_resume_memory_bytes",
        "Memory of the responses that clients can return to (streams.resume).",
        |status| {
            let ResumeBytes(bytes) = status.blocks.get_or_default();
            Some(bytes as f64)
        },
    ),
];

/// Adds the result of a request to the JSON of its decision.
pub fn add_to_decision(entry: &DecisionLogEntry, detail: &mut Value) {
    let note = entry.notes.get::<Arc<RunNote>>();
    detail["actual"]["resume"] = note.map(|note| note.get().as_str()).into();
}
