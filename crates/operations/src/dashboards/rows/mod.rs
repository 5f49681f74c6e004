//! The rows of the dashboards. Each file defines one row.

mod cache;
mod cost;
mod diagnosis;
mod gateway;
mod golden_signals;
mod gpus;
mod health;
mod latency;
mod quality;
mod queues;
mod routing;
mod slo;

use super::grid::DashboardRow;
use crate::catalogue::MetricCatalogue;
pub(super) use diagnosis::build_backend_row;

/// The rows of the main dashboard. The golden signals show whether clients are served well, and the
/// other rows show the causes if they are not.
pub(super) fn overview_rows(metrics: &MetricCatalogue) -> Vec<DashboardRow> {
    vec![
        golden_signals::row(metrics),
        diagnosis::row(metrics),
        slo::row(metrics),
        latency::row(metrics),
        health::row(metrics),
        queues::row(metrics),
        cache::row(metrics),
        cost::row(metrics),
        gpus::row(metrics),
        routing::row(metrics),
        quality::row(metrics),
        gateway::row(metrics),
    ]
}
