//! What stands around the gateway, and where: what the printed files point to.

/// The neighbours. Addresses are `host:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// The admin ports of the gateways.
    pub gateways: Vec<String>,
    /// The replicas, by name and address.
    pub replicas: Vec<(String, String)>,
    /// The metrics of GPUs, as a host and a port; nothing if no such host is known.
    pub gpus: (String, u16),
    /// The metrics that the collector makes of spans.
    pub span_metrics: String,
    /// The URL of Prometheus.
    pub prometheus: String,
    /// The address of Alertmanager.
    pub alertmanager: String,
    /// The URL to which Alertmanager sends notifications, with the severity appended.
    pub webhook: String,
    /// The URL of Jaeger's query service.
    pub jaeger: String,
    /// Where the page of runbooks is served.
    pub runbooks: String,
}

impl Surroundings {
    /// One gateway and its backends, and the other services by the names that they have in
    /// `docker/compose.yml`.
    pub fn new(admin: String, backends: Vec<(String, String)>) -> Self {
        Self {
            gateways: vec![admin],
            replicas: backends,
            gpus: ("dcgm-exporter".to_owned(), 9400),
            span_metrics: "collector:8889".to_owned(),
            prometheus: "http://prometheus:9090".to_owned(),
            alertmanager: "alertmanager:9093".to_owned(),
            webhook: "http://webhook:8080".to_owned(),
            jaeger: "http://jaeger:16686".to_owned(),
            runbooks: "docs/runbooks.md".to_owned(),
        }
    }
}
