//! Generates the configuration of Prometheus: scrape jobs, rule files and exemplar storage.
//!
//! Prometheus also scrapes the engines, for metrics that the gateway does not read. The series of an engine get
//! the label `backend`, with the gateway's name for the backend, so that a query can combine them with series
//! of the gateway.

use super::deployment::DeploymentEndpoints;
use super::yaml;
use serde::Serialize;

/// The parts that do not depend on the deployment: intervals, rule files, exemplar storage, and the
/// Alertmanager at the address in `docker/compose.yml`.
const GLOBAL_CONFIG: &str = include_str!("prometheus.yaml");

#[derive(Serialize)]
struct ScrapeConfigs<'a> {
    scrape_configs: Vec<ScrapeJob<'a>>,
}

#[derive(Serialize)]
struct ScrapeJob<'a> {
    #[serde(rename = "job_name")]
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scrape_interval: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    static_configs: Vec<StaticTargets<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dns_sd_configs: Vec<DnsTargets<'a>>,
}

#[derive(Serialize)]
struct StaticTargets<'a> {
    targets: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<TargetLabels<'a>>,
}

/// Scrape targets that Prometheus finds by a DNS lookup. The lookup may find no target.
#[derive(Serialize)]
struct DnsTargets<'a> {
    names: [&'a str; 1],
    r#type: &'static str,
    port: u16,
}

#[derive(Serialize)]
struct TargetLabels<'a> {
    backend: &'a str,
}

/// Generates the configuration file.
pub(super) fn print(endpoints: &DeploymentEndpoints) -> yaml::RenderResult {
    let addresses = [("alertmanager:9093", &*endpoints.alertmanager)];
    let text = yaml::with_values(GLOBAL_CONFIG, &addresses)?;
    Ok(text
        + &yaml::render(&ScrapeConfigs {
            scrape_configs: scrape_jobs(endpoints),
        })?)
}

fn scrape_jobs(endpoints: &DeploymentEndpoints) -> Vec<ScrapeJob<'_>> {
    let job = |name, static_configs| ScrapeJob {
        name,
        scrape_interval: Some("15s"),
        static_configs,
        dns_sd_configs: Vec::new(),
    };
    let backends = endpoints
        .backends
        .iter()
        .map(|(name, address)| StaticTargets {
            targets: vec![address],
            labels: Some(TargetLabels { backend: name }),
        });
    let gateways = endpoints.gateways.iter().map(String::as_str).collect();
    let spans = endpoints.span_metrics.as_ref().map(|address| {
        job(
            "spans",
            vec![StaticTargets {
                targets: vec![address],
                labels: None,
            }],
        )
    });
    let gpus = endpoints.gpus.as_ref().map(|(host, port)| ScrapeJob {
        dns_sd_configs: vec![DnsTargets {
            names: [host],
            r#type: "A",
            port: *port,
        }],
        ..job("gpus", Vec::new())
    });
    let own = [
        ScrapeJob {
            scrape_interval: None,
            ..job(
                "tokenweir",
                vec![StaticTargets {
                    targets: gateways,
                    labels: None,
                }],
            )
        },
        // The gateway already scrapes the engines often, and each scrape costs CPU time of the engine's server.
        // So Prometheus scrapes the engines less often than the gateways.
        job("vllm", backends.collect()),
    ];
    own.into_iter().chain(spans).chain(gpus).collect()
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
