//! Dashboards for Grafana. The contents are tables in one file per row, `grid` and `panel` convert
//! them to Grafana's format, and `query` builds Prometheus queries.

use crate::catalogue::MetricCatalogue;
mod backend;
mod cache;
mod diagnosis;
mod gateway;
mod golden_signals;
mod grid;
mod health;
mod latency;
mod panel;
mod quality;
pub mod query;
mod queues;
mod routing;
mod slo;

pub use backend::backend_dashboard;
pub use grid::{Dashboard, DashboardRow, DashboardVariable};
pub use panel::{Panel, PanelKind, Thresholds};

/// The main dashboard: the golden signals, followed by rows for the causes.
pub fn overview_dashboard(metrics: &MetricCatalogue) -> Dashboard {
    Dashboard {
        uid: "tokenweir",
        title: "tokenweir",
        description: "Shows whether clients are served well, and the causes if they are not. A dot \
                      on a heatmap is a request: it opens its trace.",
        variables: vec![DashboardVariable::MODELS, DashboardVariable::BACKENDS],
        rows: vec![
            golden_signals::row(metrics),
            diagnosis::row(metrics),
            slo::row(metrics),
            latency::row(metrics),
            health::row(metrics),
            queues::row(metrics),
            cache::row(metrics),
            routing::row(metrics),
            quality::row(metrics),
            gateway::row(metrics),
        ],
    }
}
