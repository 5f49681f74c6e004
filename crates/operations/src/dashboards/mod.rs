//! Dashboards for Grafana: what they show is a table in each file of rows, how Grafana wants it
//! written down is in `grid` and `panel`, and how a metric is asked for in `query`.

use crate::catalogue::Catalogue;
mod cache;
mod diagnosis;
mod gateway;
mod golden;
mod grid;
mod health;
mod latency;
mod objectives;
mod panel;
mod quality;
pub mod query;
mod queues;
mod replica;
mod routing;

pub use grid::{Dashboard, Row, Variable};
pub use panel::{Kind, Panel, Thresholds};
pub use replica::replica;

/// The main dashboard: three signals that tell whether users are served well, then where to look.
pub fn overview(metrics: &Catalogue) -> Dashboard {
    Dashboard {
        uid: "tokenweir",
        title: "tokenweir",
        description: "Whether users are served well, and if not, why. A dot on a heatmap is a request: \
                      it opens its trace.",
        variables: vec![Variable::MODELS, Variable::BACKENDS],
        rows: vec![
            golden::row(metrics),
            diagnosis::row(metrics),
            objectives::row(metrics),
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
