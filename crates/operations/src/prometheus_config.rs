//! Generates the configuration of Prometheus: scrape jobs, rule files and exemplar storage.
//!
//! Prometheus also scrapes the engines, for metrics that the gateway does not read. The series of an engine get
//! the label `backend`, with the gateway's name for the backend, so that a query can combine them with series
//! of the gateway.

use super::deployment::DeploymentEndpoints;
use super::yaml::{self, scalar};
use std::fmt::Write;

/// The parts that do not depend on the deployment: intervals, rule files, exemplar storage, and the
/// Alertmanager at the address in `docker/compose.yml`. The jobs of the gateways follow.
const GLOBAL_CONFIG: &str = include_str!("prometheus.yaml");

/// The job of the engines. The gateway already scrapes the engines often, and each scrape costs CPU time of the
/// engine's server. So Prometheus scrapes the engines less often than the gateways.
const ENGINES: &str = "  - job_name: vllm\n    scrape_interval: 15s\n";

/// Generates the configuration file.
pub(super) fn print(endpoints: &DeploymentEndpoints) -> yaml::RenderResult {
    let addresses = [("alertmanager:9093", &*endpoints.alertmanager)];
    let mut text = yaml::with_values(GLOBAL_CONFIG, &addresses)?;
    // Writing to a string cannot fail.
    for gateway in &endpoints.gateways {
        let _ = writeln!(text, "          - {}", scalar(gateway)?);
    }
    text.push_str(ENGINES);
    if !endpoints.backends.is_empty() {
        text.push_str("    static_configs:\n");
    }
    for (name, address) in &endpoints.backends {
        let name = scalar(name)?;
        let address = scalar(address)?;
        let _ = write!(
            text,
            "      - targets:
          - {address}
        labels:
          backend: {name}
"
        );
    }
    if let Some(address) = &endpoints.span_metrics {
        let address = scalar(address)?;
        let _ = write!(
            text,
            "  - job_name: spans
    scrape_interval: 15s
    static_configs:
      - targets:
          - {address}
"
        );
    }
    // The lookup may find no target.
    if let Some((host, port)) = &endpoints.gpus {
        let host = scalar(host)?;
        let _ = write!(
            text,
            "  - job_name: gpus
    scrape_interval: 15s
    dns_sd_configs:
      - names:
          - {host}
        type: A
        port: {port}
"
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_services_are_not_scraped() {
        let plain = DeploymentEndpoints::new("http://gateway:9090", Vec::new());
        let shown = print(&plain).unwrap();
        assert!(
            shown.contains("- gateway:9090") && !shown.contains("8889"),
            "{shown}"
        );
        assert!(!shown.contains("dcgm"), "{shown}");
        let spans = Some("collector:8889".to_owned());
        let gpus = Some(("gpus".to_owned(), 9400));
        let full = print(&DeploymentEndpoints {
            span_metrics: spans,
            gpus,
            ..plain
        })
        .unwrap();
        assert!(
            full.contains("- collector:8889") && full.contains("port: 9400"),
            "{full}"
        );
    }
}
