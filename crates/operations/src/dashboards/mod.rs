//! The dashboards for Grafana. The files in `rows` define the panels of each row, `grid` and
//! `panel` convert them to Grafana's format, and `query` builds their Prometheus queries.

pub mod query;

mod panel;

mod grid;

mod rows;

mod backend;

use crate::catalogue::MetricCatalogue;
pub use backend::backend_dashboard;
pub use grid::{Dashboard, DashboardRow, DashboardVariable, annotation_queries};
pub use panel::{Panel, PanelKind, Thresholds};

/// The main dashboard, about all models and backends.
pub fn overview_dashboard(metrics: &MetricCatalogue) -> Dashboard {
    Dashboard {
        uid: "tokenweir",
        title: "tokenweir",
        description: "Shows whether clients are served well, and the causes if they are not. A dot \
                      on a heatmap is a request: it opens its trace.",
        variables: vec![
            DashboardVariable::GATEWAYS,
            DashboardVariable::MODELS,
            DashboardVariable::BACKENDS,
        ],
        rows: rows::overview_rows(metrics),
    }
}
