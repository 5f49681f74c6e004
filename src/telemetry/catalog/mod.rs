//! The catalogue of every exported metric: name, help text, kind, labels and how to read its
//! values.
//!
//! `tokenweir generate metrics-reference` prints the metrics reference from this list. Every series
//! whose label values all come from closed sets exists from the start, with the value 0.

mod backends;
mod connections;
mod lifecycle;
mod objectives;
mod quality;
mod requests;
mod resilience;
mod routing;
mod streams;
mod tenants;

use super::metric::{MetricDescriptor, MetricEmitter};
use std::time::Duration;
use tokenweir_core::record::RequestRecord;

/// Bucket bounds of time to first token, in seconds: those of OpenTelemetry and vLLM, with finer
/// ones around common objectives.
pub const TTFT_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5,
    2.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
];
/// Bucket bounds of the duration of a whole request, in seconds.
pub const DURATION_BOUNDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
];
/// Bucket bounds of the phases of a request, in seconds: from microseconds in the gateway to a
/// response of 10 minutes.
pub const PHASE_BOUNDS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];
/// Bucket bounds of the time that the gateway itself adds to a request, in seconds.
pub const OVERHEAD_BOUNDS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.5,
];
/// Bucket bounds of the wait in the admission queue, in seconds.
pub const QUEUE_WAIT_BOUNDS: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Bucket bounds of a share of a limit, 0 to 1.
pub const RATIO_BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0];
/// Bucket bounds of the absolute error of a predicted time, in seconds.
pub const PREDICTION_ERROR_BOUNDS: &[f64] =
    &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Bucket bounds of actual time / predicted time, spread to both sides of 1.
pub const PREDICTION_RATIO_BOUNDS: &[f64] =
    &[0.1, 0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 4.0, 10.0];
/// Bucket bounds of the duration of a scrape, in seconds.
pub const SCRAPE_DURATION_BOUNDS: &[f64] =
    &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

/// All metrics of the gateway, in the order of the metrics page.
pub fn rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    [
        streams::ROWS,
        requests::ROWS,
        quality::ROWS,
        tenants::ROWS,
        objectives::ROWS,
        backends::ROWS,
        resilience::ROWS,
        routing::ROWS,
        connections::ROWS,
        lifecycle::ROWS,
    ]
    .into_iter()
    .flatten()
}

fn emit_by_model_and_backend(
    record: &RequestRecord,
    value: Option<Duration>,
    emit: MetricEmitter<'_>,
) {
    if let (Some(value), Some(backend)) = (value, record.backend()) {
        emit(&[record.model.as_str(), backend.as_str()], value.as_secs_f64());
    }
}
