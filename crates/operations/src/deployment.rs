//! The addresses of the services around the gateway, which the generated files refer to.

/// The addresses of the services, as `host:port` unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentEndpoints {
    /// The admin listeners of the gateways.
    pub gateways: Vec<String>,
    /// The names and addresses of the backends.
    pub backends: Vec<(String, String)>,
    /// Host and port of the exporter of GPU metrics. Prometheus has no targets if the name does not
    /// resolve.
    pub gpus: (String, u16),
    /// The metrics that the collector computes from spans.
    pub span_metrics: String,
    /// The URL of Prometheus.
    pub prometheus: String,
    /// The address of Alertmanager.
    pub alertmanager: String,
    /// The URL to which Alertmanager sends notifications, with the severity appended.
    pub webhook: String,
    /// The URL of Jaeger's query service.
    pub jaeger: String,
    /// The URL of the page of runbooks.
    pub runbooks: String,
}

impl DeploymentEndpoints {
    /// One gateway and its backends, and the other services by the names that they have in
    /// `docker/compose.yml`.
    pub fn new(admin: String, backends: Vec<(String, String)>) -> Self {
        Self {
            gateways: vec![admin],
            backends,
            gpus: ("dcgm-exporter".to_owned(), 9400),
            span_metrics: "collector:8889".to_owned(),
            prometheus: "http://prometheus:9090".to_owned(),
            alertmanager: "alertmanager:9093".to_owned(),
            webhook: "http://webhook:8080".to_owned(),
            jaeger: "http://jaeger:16686".to_owned(),
            runbooks: "docs/operate/runbooks.md".to_owned(),
        }
    }
}
