//! Grafana's provisioning: where it finds metrics and traces, and the dashboards.

use super::surroundings::Surroundings;
use super::yaml;
use serde::Serialize;

/// The identity of the data source of traces, which exemplars lead to.
const JAEGER: &str = "jaeger";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sources<'a> {
    api_version: u8,
    datasources: [Source<'a>; 2],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Source<'a> {
    name: &'static str,
    r#type: &'static str,
    uid: &'static str,
    url: &'a str,
    access: &'static str,
    is_default: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    json_data: Option<PrometheusOptions>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PrometheusOptions {
    http_method: &'static str,
    time_interval: &'static str,
    exemplar_trace_id_destinations: [ExemplarLink; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExemplarLink {
    /// The label of exemplars.
    name: &'static str,
    datasource_uid: &'static str,
    url_display_label: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Providers {
    api_version: u8,
    providers: [Provider; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Provider {
    name: &'static str,
    r#type: &'static str,
    allow_ui_updates: bool,
    options: ProviderOptions,
}

#[derive(Serialize)]
struct ProviderOptions {
    path: &'static str,
}

/// The data sources: an exemplar of a metric opens its trace.
pub(super) fn datasources(around: &Surroundings) -> yaml::Result {
    let prometheus = Source {
        name: "Prometheus",
        r#type: "prometheus",
        uid: "prometheus",
        url: &around.prometheus,
        access: "proxy",
        is_default: true,
        json_data: Some(PrometheusOptions {
            http_method: "POST",
            // The scrape interval, from which Grafana computes $__rate_interval.
            time_interval: "5s",
            exemplar_trace_id_destinations: [ExemplarLink {
                name: "trace_id",
                datasource_uid: JAEGER,
                url_display_label: "Open the trace",
            }],
        }),
    };
    let jaeger = Source {
        name: "Jaeger",
        r#type: "jaeger",
        uid: JAEGER,
        url: &around.jaeger,
        access: "proxy",
        is_default: false,
        json_data: None,
    };
    yaml::print(
        "grafana-datasources",
        &Sources { api_version: 1, datasources: [prometheus, jaeger] },
    )
}

/// The folder of dashboards.
pub(super) fn provider() -> yaml::Result {
    let provider = Provider {
        name: "tokenweir",
        r#type: "file",
        allow_ui_updates: true,
        options: ProviderOptions { path: "/var/lib/grafana/dashboards" },
    };
    yaml::print("grafana-provider", &Providers { api_version: 1, providers: [provider] })
}
