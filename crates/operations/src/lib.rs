//! Prints the files that a deployment of the gateway needs. The rules of Prometheus, the configuration of
//! Alertmanager and the dashboards are files of this repository in which addresses are replaced. The other
//! files are generated from tables: the scrape configuration, the page about the diagnosis, and the reference
//! pages. A test checks each metric, label and label value of all queries against the catalogue of metrics.

pub mod catalogue;
mod deployment;
mod diagnosis_page;
mod prometheus_config;
mod yaml;

use catalogue::MetricCatalogue;
use schemars::Schema;
use tokenweir_diagnose::DiagnosisRule;
use tokenweir_protocol::named_enum;

pub use deployment::DeploymentEndpoints;
pub use yaml::RenderError;

named_enum! {
    /// A file that can be printed. Its name is the path of the generated file in this repository.
    #[derive(clap::ValueEnum)]
    pub enum Artifact {
        /// Prometheus: scrape configuration, rule files, exemplar storage.
        Prometheus = "config/prometheus/prometheus.yml",
        /// Prometheus: recording rules.
        RecordingRules = "config/prometheus/recording-rules.yml",
        /// Prometheus: alert rules.
        AlertRules = "config/prometheus/alert-rules.yml",
        /// Alertmanager: routes, receivers and inhibitions.
        Alertmanager = "config/alertmanager/alertmanager.yml",
        /// Grafana: the main dashboard.
        DashboardOverview = "config/grafana/dashboards/overview.json",
        /// Grafana: the dashboard of one backend.
        DashboardBackend = "config/grafana/dashboards/backend.json",
        /// Grafana: the data sources Prometheus and Jaeger, with links from exemplars to traces.
        GrafanaDatasources = "config/grafana/datasources.yml",
        /// Grafana: the dashboard provider.
        GrafanaProvider = "config/grafana/provider.yml",
        /// OpenTelemetry Collector: exports complete sampled traces to Jaeger.
        Collector = "config/otel/collector.yaml",
        /// Page of the diagnosis: a section for each alert and each verdict.
        Runbooks = "docs/operate/diagnose.md",
        /// JSON Schema of the configuration file, for editors.
        Schema = "config/tokenweir.schema.json",
        /// Catalogue of the metrics with their labels, as JSON.
        Metrics = "config/metrics.json",
    }
}

/// The tables that the gateway provides for the generated files.
pub struct GatewayTables {
    /// All metrics of the gateway.
    pub metrics: MetricCatalogue,
    /// The JSON Schema of the configuration file.
    pub schema: Schema,
    /// All rules of the diagnosis.
    pub rules: Vec<&'static DiagnosisRule>,
}

const RECORDING_RULES: &str = include_str!("../../../config/prometheus/recording-rules.yml");
/// The alert rules, with links to runbooks at `http://127.0.0.1:9090/runbooks`.
const ALERT_RULES: &str = include_str!("../../../config/prometheus/alert-rules.yml");
/// The configuration file of Alertmanager, with a webhook at `http://webhook:8080`. The severity is appended to
/// this URL.
const ALERTMANAGER_CONFIG: &str = include_str!("../../../config/alertmanager/alertmanager.yml");

const OVERVIEW_DASHBOARD: &str = include_str!("../../../config/grafana/dashboards/overview.json");
const BACKEND_DASHBOARD: &str = include_str!("../../../config/grafana/dashboards/backend.json");

/// The data sources of Grafana for the addresses of `docker/compose.yml`. Exemplars link to traces in
/// Jaeger. `timeInterval` must equal the scrape interval of Prometheus, because Grafana computes
/// `$__rate_interval` from it.
const GRAFANA_DATASOURCES: &str = include_str!("grafana_datasources.yaml");
/// The dashboard provider of Grafana, which loads dashboards from a folder.
const GRAFANA_PROVIDER: &str = include_str!("grafana_provider.yaml");

/// The configuration file of the OpenTelemetry Collector for a Jaeger at `jaeger:4317`.
const COLLECTOR_CONFIG: &str = include_str!("collector.yaml");

/// The data sources of Grafana: Prometheus and Jaeger at these URLs.
fn grafana_datasources(prometheus: &str, jaeger: &str) -> yaml::RenderResult {
    let urls = [
        ("http://prometheus:9090", prometheus),
        ("http://jaeger:16686", jaeger),
    ];
    yaml::with_values(GRAFANA_DATASOURCES, &urls)
}

/// The configuration file of a trace collector that sends spans to Jaeger. `jaeger`: the URL of Jaeger's
/// query service. The spans go to the OTLP port of the same host.
fn collector_config(jaeger: &str) -> String {
    let authority = jaeger.split_once("://").map_or(jaeger, |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    let port = authority
        .rfind(':')
        .filter(|colon| !authority[*colon..].contains(']'));
    let host = &authority[..port.unwrap_or(authority.len())];
    COLLECTOR_CONFIG.replace("endpoint: jaeger:4317", &format!("endpoint: {host}:4317"))
}

#[cfg(test)]
#[test]
fn urls_are_quoted_if_yaml_needs_it() {
    let long = format!("http://p/{}", "a".repeat(100));
    for url in [
        "http://p:9090",
        "http://jaeger:16686",
        "{{ .Values.prom }}",
        "http://p # a",
        "p:",
        &long,
    ] {
        let text = grafana_datasources(url, "http://prometheus:9090").unwrap();
        let file: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let urls = [0, 1].map(|index| file["datasources"][index]["url"].as_str());
        assert_eq!(urls, [Some(url), Some("http://prometheus:9090")], "{text}");
    }
}

#[cfg(test)]
#[test]
fn spans_go_to_the_jaeger_urls_host() {
    for (jaeger, endpoint) in [
        ("http://jaeger:16686", "endpoint: jaeger:4317"),
        (
            "https://traces.example/ui/",
            "endpoint: traces.example:4317",
        ),
        ("http://[::1]:16686", "endpoint: [::1]:4317"),
        ("10.0.0.7:16686", "endpoint: 10.0.0.7:4317"),
    ] {
        assert!(collector_config(jaeger).contains(endpoint), "{jaeger}");
    }
}

impl Artifact {
    /// Generates the text of the file for a deployment with these endpoints.
    pub fn print(
        self,
        gateway: &GatewayTables,
        endpoints: &DeploymentEndpoints,
    ) -> Result<String, RenderError> {
        let GatewayTables {
            metrics,
            schema,
            rules,
        } = gateway;
        match self {
            Self::Prometheus => prometheus_config::print(endpoints),
            Self::RecordingRules => Ok(RECORDING_RULES.to_owned()),
            Self::AlertRules => {
                let runbooks = ("http://127.0.0.1:9090/runbooks", &*endpoints.runbooks);
                yaml::with_values(ALERT_RULES, &[runbooks])
            }
            Self::Alertmanager => {
                let webhook = ("http://webhook:8080", &*endpoints.webhook);
                yaml::with_values(ALERTMANAGER_CONFIG, &[webhook])
            }
            Self::DashboardOverview => Ok(OVERVIEW_DASHBOARD.to_owned()),
            Self::DashboardBackend => Ok(BACKEND_DASHBOARD.to_owned()),
            Self::GrafanaDatasources => {
                grafana_datasources(&endpoints.prometheus, &endpoints.jaeger)
            }
            Self::GrafanaProvider => Ok(GRAFANA_PROVIDER.to_owned()),
            Self::Collector => Ok(collector_config(&endpoints.jaeger)),
            Self::Runbooks => Ok(diagnosis_page::print(rules, ALERT_RULES)),
            Self::Schema => Ok(format!("{:#}\n", schema.as_value())),
            Self::Metrics => Ok(catalogue::print(metrics)),
        }
    }
}
