//! Generates the provisioning files of Grafana: data sources and the dashboard provider.

use super::deployment::DeploymentEndpoints;
use super::yaml;
use serde::Serialize;

/// The uid of Grafana's data source for traces. Exemplars link to this data source.
const JAEGER_UID: &str = "jaeger";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DatasourceFile<'a> {
    api_version: u8,
    datasources: [GrafanaDatasource<'a>; 2],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GrafanaDatasource<'a> {
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
    exemplar_trace_id_destinations: [ExemplarTraceLink; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExemplarTraceLink {
    /// The exemplar label whose value is the trace id.
    name: &'static str,
    datasource_uid: &'static str,
    url_display_label: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DashboardProviderFile {
    api_version: u8,
    providers: [DashboardProvider; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DashboardProvider {
    name: &'static str,
    r#type: &'static str,
    allow_ui_updates: bool,
    options: ProviderOptions,
}

#[derive(Serialize)]
struct ProviderOptions {
    path: &'static str,
}

/// Generates the file of data sources: Prometheus and Jaeger. Exemplars link to traces in Jaeger.
pub(super) fn datasources(endpoints: &DeploymentEndpoints) -> yaml::RenderResult {
    let prometheus = GrafanaDatasource {
        name: "Prometheus",
        r#type: "prometheus",
        uid: "prometheus",
        url: &endpoints.prometheus,
        access: "proxy",
        is_default: true,
        json_data: Some(PrometheusOptions {
            http_method: "POST",
            // Must equal the scrape interval of Prometheus, because Grafana computes $__rate_interval from
            // this value.
            time_interval: "5s",
            exemplar_trace_id_destinations: [ExemplarTraceLink {
                name: "trace_id",
                datasource_uid: JAEGER_UID,
                url_display_label: "Open the trace",
            }],
        }),
    };
    let jaeger = GrafanaDatasource {
        name: "Jaeger",
        r#type: "jaeger",
        uid: JAEGER_UID,
        url: &endpoints.jaeger,
        access: "proxy",
        is_default: false,
        json_data: None,
    };
    yaml::print(
        "grafana-datasources",
        &DatasourceFile { api_version: 1, datasources: [prometheus, jaeger] },
    )
}

/// Generates the file of the dashboard provider, which loads dashboards from a folder.
pub(super) fn provider() -> yaml::RenderResult {
    let provider = DashboardProvider {
        name: "tokenweir",
        r#type: "file",
        allow_ui_updates: true,
        options: ProviderOptions { path: "/var/lib/grafana/dashboards" },
    };
    yaml::print(
        "grafana-provider",
        &DashboardProviderFile { api_version: 1, providers: [provider] },
    )
}
