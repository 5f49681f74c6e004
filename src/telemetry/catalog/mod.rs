//! Every metric the gateway exports, one row each: name, help, kind, labels, and how to read it.
//! The README's table is checked against this list, and every series of a closed label set is
//! there from the start.

mod doors;
mod lifecycle;
mod objectives;
mod quality;
mod replicas;
mod requests;
mod resilience;
mod routing;
mod streams;
mod tenants;

use super::metric::{Emit, Row};
use std::time::Duration;
use tokenweir_core::record::RequestRecord;

/// Bounds of time to first token: OpenTelemetry's and vLLM's, and finer ones around common
/// objectives.
pub const TTFT_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5,
    2.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
];
/// Bounds of whole requests.
pub const DURATION_BOUNDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
];
/// Bounds of the phases of a request, from the gateway's microseconds to a long answer.
pub const PHASE_BOUNDS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];
/// Bounds of what the gateway itself takes.
pub const OVERHEAD_BOUNDS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.5,
];
/// Bounds of a wait for a replica with room.
pub const QUEUE_BOUNDS: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Bounds of a share of a limit.
pub const RATIO_BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0];
/// Bounds of how far a prediction of a time was off.
pub const ERROR_BOUNDS: &[f64] =
    &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Bounds of what became true over what was predicted: even to both sides of 1.
pub const PREDICTION_BOUNDS: &[f64] = &[0.1, 0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 4.0, 10.0];
/// Bounds of a look at a replica.
pub const SCRAPE_BOUNDS: &[f64] = &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

/// The list.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [
        streams::ROWS,
        requests::ROWS,
        quality::ROWS,
        tenants::ROWS,
        objectives::ROWS,
        replicas::ROWS,
        resilience::ROWS,
        routing::ROWS,
        doors::ROWS,
        lifecycle::ROWS,
    ]
    .into_iter()
    .flatten()
}

fn by_model_and_backend(record: &RequestRecord, value: Option<Duration>, emit: Emit<'_>) {
    if let (Some(value), Some(backend)) = (value, record.backend()) {
        emit(&[record.model.as_str(), backend.as_str()], value.as_secs_f64());
    }
}
