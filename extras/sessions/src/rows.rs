//! Metrics of admission by live sessions.

use super::sessions_status::{AdmissionReason, SessionsStatus};
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusSnapshot;

/// The metrics of admission by live sessions.
pub const ROWS: &[MetricDescriptor] = &[
    value(
        "tokenweir_live_sessions",
        "Sessions in progress: running, or idle for a time after which sessions return.",
        |status| sessions(status).map(|sessions| sessions.live_sessions as f64),
    ),
    value(
        "tokenweir_fitting_sessions",
        "Sessions of the present size that fit into the KV caches of the backends.",
        |status| {
            sessions(status)
                .and_then(SessionsStatus::fitting)
                .map(|fitting| fitting as f64)
        },
    ),
    value(
        "tokenweir_held_requests",
        "Requests of new sessions that wait until the sessions in progress leave room.",
        |status| sessions(status).map(|sessions| sessions.held_requests as f64),
    ),
    counts(
        "tokenweir_session_turns_total",
        "Requests that admission by sessions let in, by reason.",
        &[counted("reason", |status| {
            let admitted = sessions(status).map_or(&[][..], |sessions| &sessions.admitted);
            let count = |reason: AdmissionReason| admitted.get(reason as usize).copied();
            let counts = AdmissionReason::ALL.into_iter();
            counts
                .map(|reason| (reason.as_str(), count(reason).unwrap_or(0)))
                .collect()
        })],
    ),
];

fn sessions(status: &StatusSnapshot) -> Option<&SessionsStatus> {
    status.blocks.get()
}
