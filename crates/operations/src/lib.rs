//! What an operator installs around the gateway: rules and alerts for Prometheus, who is called for
//! them, dashboards, and a collector for traces;
//! and the reference of what can be configured and what is measured. All of it is printed from tables here, and a test
//! finds every metric, label and label value of them in the catalogue: a metric that is renamed
//! breaks a test, and not the alert at night.

mod alertmanager;
pub mod alerts;
pub mod catalogue;
pub mod dashboards;
mod grafana;
pub mod recording;
mod reference;
mod rules;
pub mod runbooks;
mod scraping;
mod surroundings;
mod yaml;

use catalogue::Catalogue;
use schemars::Schema;

pub use surroundings::Surroundings;
pub use yaml::Error;

/// A file that can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Artifact {
    /// Prometheus: what it scrapes, its rule files, room for exemplars.
    Prometheus,
    /// Prometheus: series computed ahead.
    RecordingRules,
    /// Prometheus: alerts.
    AlertRules,
    /// Alertmanager: who is told, and which alerts say nothing new.
    Alertmanager,
    /// Grafana: the main dashboard.
    DashboardOverview,
    /// Grafana: one replica.
    DashboardReplica,
    /// Grafana: Prometheus and Jaeger, with links from exemplars to traces.
    GrafanaDatasources,
    /// Grafana: the folder of dashboards.
    GrafanaProvider,
    /// OpenTelemetry Collector: complete traces, the interesting ones, to Jaeger.
    Collector,
    /// A page on each alert: what it means, how to see it, what to do.
    Runbooks,
    /// JSON Schema of the configuration file, for editors.
    Schema,
    /// A page on each key of the configuration.
    ConfigurationReference,
    /// A page on each metric.
    MetricsReference,
}

/// The gateway's own tables, from which the files are generated.
#[derive(Debug)]
pub struct Gateway {
    /// The metrics.
    pub metrics: Catalogue,
    /// The JSON Schema of the configuration.
    pub schema: Schema,
}

/// The collector's configuration does not depend on anything here.
const COLLECTOR: &str = include_str!("collector.yaml");

impl Artifact {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Prometheus,
        Self::RecordingRules,
        Self::AlertRules,
        Self::Alertmanager,
        Self::DashboardOverview,
        Self::DashboardReplica,
        Self::GrafanaDatasources,
        Self::GrafanaProvider,
        Self::Collector,
        Self::Runbooks,
        Self::Schema,
        Self::ConfigurationReference,
        Self::MetricsReference,
    ];

    /// Where it is kept, from the top of the repository.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Prometheus => "config/prometheus/prometheus.yml",
            Self::RecordingRules => "config/prometheus/recording-rules.yml",
            Self::AlertRules => "config/prometheus/alert-rules.yml",
            Self::Alertmanager => "config/alertmanager/alertmanager.yml",
            Self::DashboardOverview => "config/grafana/dashboards/overview.json",
            Self::DashboardReplica => "config/grafana/dashboards/replica.json",
            Self::GrafanaDatasources => "config/grafana/datasources.yml",
            Self::GrafanaProvider => "config/grafana/provider.yml",
            Self::Collector => "config/otel/collector.yaml",
            Self::Runbooks => "docs/runbooks.md",
            Self::Schema => "config/tokenweir.schema.json",
            Self::ConfigurationReference => "docs/configuration.md",
            Self::MetricsReference => "docs/metrics.md",
        }
    }

    /// Its text.
    pub fn print(self, gateway: &Gateway, around: &Surroundings) -> Result<String, Error> {
        let Gateway { metrics, schema } = gateway;
        match self {
            Self::Prometheus => scraping::print(around),
            Self::RecordingRules => rules::recording_rules(),
            Self::AlertRules => rules::alert_rules(&around.runbooks),
            Self::Alertmanager => alertmanager::print(&around.webhook),
            Self::DashboardOverview => Ok(dashboards::overview(metrics).print()),
            Self::DashboardReplica => Ok(dashboards::replica(metrics).print()),
            Self::GrafanaDatasources => grafana::datasources(around),
            Self::GrafanaProvider => grafana::provider(),
            Self::Collector => Ok(COLLECTOR.to_owned()),
            Self::Runbooks => Ok(runbooks::print()),
            Self::Schema => Ok(format!("{:#}\n", schema.as_value())),
            Self::ConfigurationReference => Ok(reference::configuration(schema)),
            Self::MetricsReference => Ok(reference::metrics(metrics)),
        }
    }
}
