//! Status and metrics of the responses that clients can return to.

use crate::metric::{MetricDescriptor, MetricLabel, MetricSource};
use crate::proxy::resumption::Resumption;
use crate::status::{StatusBlock, StatusSource};
use serde::Serialize;
use std::sync::Arc;
use tokenweir_request::record::{RequestRecord, ResumeOutcome};

/// Memory of the responses that the gateway keeps for clients that may reconnect to them, in bytes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct ResumeBytes(pub usize);

impl StatusBlock for ResumeBytes {
    const KEY: Option<&'static str> = Some("resume_bytes");
}

/// The metrics of the responses that clients can return to.
pub const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor::new(
        "tokenweir_resume_requests_total",
        "Requests with an Idempotency-Key while streams.resume is on, by result.",
        &[MetricLabel::fixed("result", || ResumeOutcome::NAMES.to_vec())],
        MetricSource::RecordEvent(RequestRecord::resume_outcome),
    ),
    MetricDescriptor::value(
        "tokenweir_resume_memory_bytes",
        "Memory of the responses that clients can return to (streams.resume).",
        |status| {
            let ResumeBytes(bytes) = status.blocks.get_or_default();
            Some(bytes as f64)
        },
    ),
];

/// Returns a function that adds the memory of these responses.
pub fn status_source(resumption: Arc<Resumption>) -> StatusSource {
    Arc::new(move |status, _| status.blocks.add(ResumeBytes(resumption.used_bytes())))
}
