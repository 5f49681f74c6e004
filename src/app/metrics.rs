//! The list of all metrics.

use super::diagnosis;
use super::options;
use tokenweir_gateway::metric::{MetricDescriptor, counted, counts};
use tokenweir_gateway::telemetry::catalog;
use tokenweir_gateway::telemetry::otel;

/// The metric of the background tasks.
const TASK_ROWS: &[MetricDescriptor] = &[counts(
    "tokenweir_task_panics_total",
    "Panics of background tasks. The log has the location.",
    &[counted("task", |_| {
        let tasks = options::background_tasks().into_iter();
        tasks.map(|task| (task.as_str(), task.panics())).collect()
    })],
)];

/// Returns the rows of all metrics, in the order of the metrics reference: those of the core, and those of
/// each option.
pub fn metric_rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    let core = [TASK_ROWS, diagnosis::rows::ROWS, otel::rows::ROWS];
    let rows = core.into_iter().chain(options::ROWS.iter().copied());
    catalog::rows().chain(rows.flatten())
}
