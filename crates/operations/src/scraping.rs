//! Prometheus' configuration: what it scrapes, its rules, and room for exemplars.
//!
//! Replicas are scraped too, for what the gateway does not ask them. Their series carry the
//! gateway's name for them in `backend`, so that both stand side by side in one query.

use super::surroundings::Surroundings;
use super::yaml;
use serde::Serialize;

#[derive(Serialize)]
struct File<'a> {
    global: Global,
    storage: Storage,
    rule_files: [&'static str; 2],
    alerting: Alerting<'a>,
    scrape_configs: Vec<Job<'a>>,
}

#[derive(Serialize)]
struct Global {
    scrape_interval: &'static str,
    evaluation_interval: &'static str,
}

#[derive(Serialize)]
struct Storage {
    exemplars: Exemplars,
}

#[derive(Serialize)]
struct Exemplars {
    max_exemplars: u32,
}

#[derive(Serialize)]
struct Alerting<'a> {
    alertmanagers: [Alertmanagers<'a>; 1],
}

#[derive(Serialize)]
struct Alertmanagers<'a> {
    static_configs: [Targets<'a>; 1],
}

#[derive(Serialize)]
struct Job<'a> {
    #[serde(rename = "job_name")]
    name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scrape_interval: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    static_configs: Vec<Targets<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dns_sd_configs: Vec<Hosts<'a>>,
}

#[derive(Serialize)]
struct Targets<'a> {
    targets: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Labels<'a>>,
}

/// As many targets as a name has addresses, which may be none.
#[derive(Serialize)]
struct Hosts<'a> {
    names: [&'a str; 1],
    r#type: &'static str,
    port: u16,
}

#[derive(Serialize)]
struct Labels<'a> {
    backend: &'a str,
}

/// The file.
pub(super) fn print(around: &Surroundings) -> yaml::Result {
    let alertmanager = Targets { targets: vec![&around.alertmanager], labels: None };
    let file = File {
        global: Global { scrape_interval: "5s", evaluation_interval: "15s" },
        storage: Storage { exemplars: Exemplars { max_exemplars: 100_000 } },
        rule_files: ["recording-rules.yml", "alert-rules.yml"],
        alerting: Alerting { alertmanagers: [Alertmanagers { static_configs: [alertmanager] }] },
        scrape_configs: jobs(around),
    };
    yaml::print("prometheus", &file)
}

fn jobs(around: &Surroundings) -> Vec<Job<'_>> {
    let job = |name, static_configs| Job {
        name,
        scrape_interval: Some("15s"),
        static_configs,
        dns_sd_configs: Vec::new(),
    };
    let replicas = around.replicas.iter().map(|(name, address)| Targets {
        targets: vec![address],
        labels: Some(Labels { backend: name }),
    });
    let gateways = around.gateways.iter().map(String::as_str).collect();
    let (gpus, port) = &around.gpus;
    vec![
        Job {
            scrape_interval: None,
            ..job("tokenweir", vec![Targets { targets: gateways, labels: None }])
        },
        // The gateway already reads these pages often; rendering them is the engine's time.
        job("vllm", replicas.collect()),
        job("spans", vec![Targets { targets: vec![&around.span_metrics], labels: None }]),
        Job {
            dns_sd_configs: vec![Hosts { names: [gpus], r#type: "A", port: *port }],
            ..job("gpus", Vec::new())
        },
    ]
}
