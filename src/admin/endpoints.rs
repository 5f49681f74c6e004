//! The endpoints of the admin listener that read the state of the gateway: metrics, readiness,
//! status, configuration, diagnosis and decisions.

use super::response::{document, without_caching};
use super::state::{Admin, LatestDiagnosis, recent_panics};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, VARY,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use tokenweir_api::HistoryPage;
use tokenweir_diagnose::Verdict;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_gateway::status::StatusSnapshot;
use tokenweir_gateway::telemetry::cpu_time::{self, TelemetryPart};
use tokenweir_protocol::clock;

/// The document of `/status`: the fields of the status snapshot, plus the version, the policy, the API keys and
/// the models of the gateway.
#[derive(Serialize)]
struct StatusPage<'a> {
    version: &'static str,
    policy: &'static str,
    access: Option<Value>,
    models: Vec<&'a str>,
    verdicts: &'a [Verdict],
    #[serde(flatten)]
    status: &'a StatusSnapshot,
}

/// Maximum number of decisions in the response of `/decisions`.
const MAX_LISTED_DECISIONS: usize = 50;

/// Responds with the metrics page, compressed if the client accepts gzip.
///
/// A page of 50 backends has 10,000 samples. A separate thread writes and compresses the page, so that
/// no client request waits for it.
pub(super) async fn get_metrics(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> Response {
    let accept = joined(&headers, &ACCEPT);
    let format = admin.proxy.telemetry.page_format(&accept);
    admin.metrics_read_at.set(Some(clock::now()));
    let is_compressed = accepts_gzip(&joined(&headers, &ACCEPT_ENCODING));
    let write = move || {
        cpu_time::measure(TelemetryPart::MetricsPage, || {
            let page = admin
                .proxy
                .telemetry
                .page(&admin.status_snapshot(clock::now()), format)?;
            Some(if is_compressed { compress(&page) } else { page })
        })
    };
    let page = match tokio::task::spawn_blocking(write).await {
        Ok(Some(page)) => page,
        Ok(None) => {
            let disabled = "metrics are disabled: set metrics.level\n";
            return (StatusCode::NOT_FOUND, disabled).into_response();
        }
        // The thread panicked, or the process is ending.
        Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    let types = [
        (CONTENT_TYPE, format.content_type()),
        (VARY, "accept, accept-encoding"),
    ];
    let coding = is_compressed.then_some([(CONTENT_ENCODING, "gzip")]);
    (types, coding, page).into_response()
}

/// Joins all values of a list header, such as `Accept`, with commas. Leaves out values that are not visible
/// ASCII.
fn joined(headers: &HeaderMap, name: &HeaderName) -> String {
    let values = headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values.collect::<Vec<_>>().join(",")
}

/// Whether an `Accept-Encoding` header names gzip with a `q` above 0.
fn accepts_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|coding| {
        let (name, q) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let q = q.trim().to_ascii_lowercase();
        let q = q.strip_prefix("q=").and_then(|q| q.parse::<f64>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && q.is_some_and(|q| q > 0.0)
    })
}

/// Compresses a page with gzip, at the fastest level.
fn compress(page: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(page.len() / 8), Compression::fast());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(page);
    encoder.finish().unwrap_or_default()
}

pub(super) async fn get_readiness(State(admin): State<Arc<Admin>>) -> Response {
    if admin.proxy.draining.get() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    let now = clock::now();
    let readiness = admin.proxy.pool.readiness(now);
    let problem = match admin.unready_reason(&readiness, now) {
        Some(reason) if readiness.is_ready => format!("{reason}\n"),
        Some(states) => format!("no backend is available ({states})\n"),
        None => {
            return match recent_panics(&admin.panics_in_window(now)) {
                panics if panics.is_empty() => "ok\n".into_response(),
                panics => format!("ok\nrecent panics: {panics}\n").into_response(),
            };
        }
    };
    (StatusCode::SERVICE_UNAVAILABLE, problem).into_response()
}

pub(super) async fn get_status(State(admin): State<Arc<Admin>>) -> Response {
    let status = admin.status_snapshot(clock::now());
    let LatestDiagnosis { diagnosis } = status.blocks.get_or_default();
    let routes = admin.proxy.pool.routes();
    let page = StatusPage {
        version: env!("CARGO_PKG_VERSION"),
        policy: admin.proxy.pool.policy().name(),
        access: access_summary(&admin.proxy.access),
        models: routes.models().iter().map(|model| &*model.id).collect(),
        verdicts: &diagnosis.verdicts,
        status: &status,
    };
    document(page)
}

/// Returns the number of API keys, the open requests of each tenant, and the problem of the last
/// reload of the keys file. `None`: no API keys are configured.
fn access_summary(access: &AccessControl) -> Option<Value> {
    let keys = access.keys()?;
    let mut open = BTreeMap::<&str, u32>::new();
    for (label, requests) in keys.open_by_label() {
        *open.entry(label).or_default() += requests;
    }
    let problem = access.reload_error().map(|problem| problem.to_string());
    Some(json!({ "keys": keys.len(), "requests_in_flight": open, "problem": problem }))
}

pub(super) async fn get_configuration(State(admin): State<Arc<Admin>>) -> Response {
    document(&*admin.configuration.view())
}

pub(super) async fn get_diagnosis(State(admin): State<Arc<Admin>>) -> Response {
    document(&**admin.diagnosis.load())
}

pub(super) async fn get_history(State(admin): State<Arc<Admin>>) -> Response {
    let page = HistoryPage {
        heat_map: admin.recent_requests.heat_map(clock::now()),
        marks: admin.timeline.marks(),
    };
    document(page)
}

pub(super) async fn post_reload(State(admin): State<Arc<Admin>>) -> Response {
    let (status, result) = match admin.configuration.request_reload().await {
        Ok(summary) => (StatusCode::OK, summary),
        Err(problem) => (StatusCode::INTERNAL_SERVER_ERROR, problem),
    };
    without_caching((status, format!("{result}\n")).into_response())
}

pub(super) async fn list_decisions(State(admin): State<Arc<Admin>>) -> Response {
    let newest = admin.decisions.newest(MAX_LISTED_DECISIONS);
    let decisions: Vec<Value> = newest.iter().map(|decision| decision.summary()).collect();
    let body = json!({ "capacity": admin.decisions.capacity, "decisions": decisions });
    document(body)
}

/// Responds with the routing decision of one request. A path that is not UTF-8 is treated as an unknown
/// request id.
pub(super) async fn get_decision(
    State(admin): State<Arc<Admin>>,
    request_id: Result<Path<String>, PathRejection>,
) -> Response {
    let decision = request_id
        .ok()
        .and_then(|Path(id)| admin.decisions.get(&id));
    without_caching(match decision {
        Some(decision) => {
            let mut detail = admin.decisions.detail(&decision);
            let trace_id = detail["trace_id"].as_str();
            let url = admin.trace_ui_url.as_deref().zip(trace_id);
            detail["trace_url"] = url.map(|(ui, id)| ui.replace("{trace_id}", id)).into();
            Json(detail).into_response()
        }
        None => decision_not_found(admin.decisions.capacity),
    })
}

/// Builds the response for a request id without a stored routing decision. `log_size` is the
/// capacity of the decision log.
fn decision_not_found(log_size: usize) -> Response {
    let problem = format!(
        "no decision is stored for this request id: the request has not ended, no backend was \
         chosen for it, or it is not among the last {log_size} (routing.decision_log_size). The \
         access log has the line of an older request, with its slow_cause and phases"
    );
    (StatusCode::NOT_FOUND, Json(json!({ "error": problem }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_page_is_compressed_on_request() {
        for accepted in ["gzip", "deflate, GZIP;q=0.5", "br;q=1.0, gzip ; Q=1"] {
            assert!(accepts_gzip(accepted), "{accepted}");
        }
        for refused in ["", "identity", "gzip;q=0", "x-gzipped", "gzip;q=a"] {
            assert!(!accepts_gzip(refused), "{refused}");
        }
    }
}
