//! Status and metrics of the usage log.

pub use super::counters::{UsageGaps, UsageLogStatus};
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::{StatusBlock, StatusSnapshot};

impl StatusBlock for UsageLogStatus {
    const KEY: Option<&'static str> = Some("usage_log");
}

/// The metrics of the usage log.
pub const ROWS: &[MetricDescriptor] = &[
    counts(
        "tokenweir_usage_records_total",
        "Usage records (usage_log), by whether they were written or lost.",
        &[counted("result", |status| {
            let status = usage_log(status);
            vec![("written", status.written), ("lost", status.lost)]
        })],
    ),
    counts(
        "tokenweir_usage_gaps_total",
        "Gaps in the usage log: places where records are missing, by cause.",
        &[counted("cause", |status| {
            let UsageGaps {
                lost,
                unclean_stop,
                expired,
            } = usage_log(status).gaps;
            vec![
                ("lost", lost),
                ("unclean_stop", unclean_stop),
                ("expired", expired),
            ]
        })],
    ),
    value(
        "tokenweir_usage_unacknowledged_events",
        "Events of the usage log that the receiver (usage_log.push) has not acknowledged yet.",
        |status| Some(usage_log(status).unacknowledged as f64),
    ),
];

fn usage_log(status: &StatusSnapshot) -> UsageLogStatus {
    status.blocks.get_or_default()
}
