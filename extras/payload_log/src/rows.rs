//! Status and metrics of the payload log.

use serde::Serialize;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusBlock;
use tokenweir_gateway::telemetry::rotating_file::FileRecordCounts;

/// Number of payload log records by result.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct PayloadLogStatus(pub FileRecordCounts);

impl StatusBlock for PayloadLogStatus {}

/// The metrics of the payload log.
pub const ROWS: &[MetricDescriptor] = &[counts(
    "tokenweir_content_records_total",
    "Requests selected for the payload log (log.payloads), by result.",
    &[counted("result", |status| {
        let PayloadLogStatus(counts) = status.blocks.get_or_default();
        counts.by_result().to_vec()
    })],
)];
