//! Status and metrics of shared and persistent limits.

use crate::grants::StoreState;
use crate::status::{SharedLimitsStatus, StoreStatus};
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::{StatusBlock, StatusSnapshot};

impl StatusBlock for SharedLimitsStatus {
    const KEY: Option<&'static str> = Some("shared_limits");
}

/// The metrics of shared and persistent limits.
pub const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_limit_store_state",
        "1 for the state of the server with which gateways share limits. While it is away, the last grants hold.",
        &[fixed("state", StoreState::NAMES)],
        Status(|status, emit| {
            if let Some(store) = store(status) {
                for state in StoreState::ALL.map(StoreState::as_str) {
                    emit(&[state], f64::from(state == store.state));
                }
            }
        }),
    ),
    counts(
        "tokenweir_limit_claims_total",
        "Claims of parts of limits at the server of the exchange, by result.",
        &[counted("result", |status| {
            let store = store(status).unwrap_or_default();
            vec![
                ("answered", store.answered_claims),
                ("failed", store.failed_claims),
            ]
        })],
    ),
    value(
        "tokenweir_limit_file_errors_total",
        "Times that the file of used limits (shared_limits.file) could not be read or written.",
        |status| limits(status).map(|limits| limits.file_errors as f64),
    ),
];

fn limits(status: &StatusSnapshot) -> Option<&SharedLimitsStatus> {
    status.blocks.get()
}

fn store(status: &StatusSnapshot) -> Option<StoreStatus> {
    limits(status)?.store
}
