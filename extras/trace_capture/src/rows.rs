//! Status and metrics of the trace capture.

use serde::Serialize;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusBlock;
use tokenweir_gateway::telemetry::rotating_file::FileRecordCounts;

/// Number of records of the trace capture by result.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct TraceCaptureStatus(pub FileRecordCounts);

impl StatusBlock for TraceCaptureStatus {
    const KEY: Option<&'static str> = Some("trace_capture");
}

/// The metrics of the trace capture.
pub const ROWS: &[MetricDescriptor] = &[counts(
    "tokenweir_capture_records_total",
    "Records of the trace capture, by whether they were written or dropped.",
    &[counted("result", |status| {
        let TraceCaptureStatus(counts) = status.blocks.get_or_default();
        counts.by_result().to_vec()
    })],
)];
