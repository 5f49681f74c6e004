//! The addresses of the services of a deployment, for the generated files.

/// The addresses of the services of a deployment, as `host:port` if the field does not state another form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentEndpoints {
    /// The addresses of the admin listeners of the gateways.
    pub gateways: Vec<String>,
    /// The name and the address of each backend.
    pub backends: Vec<(String, String)>,
    /// Host name and port of the exporter of GPU metrics. Prometheus scrapes no GPU metrics if DNS does not
    /// know the host name. `None`: there is no exporter.
    pub gpus: Option<(String, u16)>,
    /// The address at which the trace collector exports the metrics that it computes from spans. `None`:
    /// Prometheus does not scrape the collector.
    pub span_metrics: Option<String>,
    /// The URL of Prometheus.
    pub prometheus: String,
    /// The address of Alertmanager.
    pub alertmanager: String,
    /// The URL to which Alertmanager sends notifications. The severity is appended to the URL.
    pub webhook: String,
    /// The URL of Jaeger's query service. The collector sends spans to port 4317 of the same host.
    pub jaeger: String,
    /// The URL of the page of runbooks, without the anchor of a section.
    pub runbooks: String,
}

impl DeploymentEndpoints {
    /// The endpoints of a deployment with one gateway. `admin`: the URL of its admin listener. `backends`:
    /// the names and addresses of its backends. The other services have the host names of
    /// `docker/compose.yml`.
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
