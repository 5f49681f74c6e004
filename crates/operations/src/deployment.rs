//! The addresses of the services of a deployment, to which the generated files refer.

/// The addresses of the services of a deployment, as `host:port` unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentEndpoints {
    /// The addresses of the admin listeners of the gateways.
    pub gateways: Vec<String>,
    /// The name and the address of each backend.
    pub backends: Vec<(String, String)>,
    /// Host name and port of the exporter of GPU metrics. Without a DNS entry for the host name,
    /// Prometheus scrapes no GPU metrics. `None`: there is no such exporter.
    pub gpus: Option<(String, u16)>,
    /// The address at which the collector exports the metrics that it computes from spans. `None`:
    /// Prometheus does not scrape the collector.
    pub span_metrics: Option<String>,
    /// The URL of Prometheus.
    pub prometheus: String,
    /// The address of Alertmanager.
    pub alertmanager: String,
    /// The URL to which Alertmanager sends notifications, with the severity appended.
    pub webhook: String,
    /// The URL of Jaeger's query service. The collector sends spans to port 4317 of its host.
    pub jaeger: String,
    /// The URL of the page of runbooks, without an anchor.
    pub runbooks: String,
}

impl DeploymentEndpoints {
    /// The endpoints of a deployment with one gateway. `admin` is the URL of its admin
    /// listener, and `backends` are the names and addresses of its backends. The other services
    /// have the names of `docker/compose.yml`.
    pub fn new(admin: &str, backends: Vec<(String, String)>) -> Self {
        Self {
            runbooks: format!("{admin}/runbooks"),
            gateways: vec![admin.rsplit('/').next().unwrap_or_default().to_owned()],
            backends,
            gpus: None,
            span_metrics: None,
            prometheus: "http://prometheus:9090".to_owned(),
            alertmanager: "alertmanager:9093".to_owned(),
            webhook: "http://webhook:8080".to_owned(),
            jaeger: "http://jaeger:16686".to_owned(),
        }
    }
}
