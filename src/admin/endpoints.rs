//! The endpoints of the admin listener that read the state of the gateway: metrics, readiness,
//! status, configuration, diagnosis and decisions.

use super::response::without_caching;
use super::state::{Admin, recent_panics};
use crate::proxy::access::AccessControl;
use crate::telemetry::cpu_time::{self, TelemetryPart};
use crate::telemetry::status::StatusSnapshot;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokenweir_core::clock;
use tokenweir_diagnose::Verdict;

/// The document of `/status`: the fields of the snapshot, and facts of other parts of the gateway.
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

pub(super) async fn get_metrics(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = admin.proxy.telemetry.page_format(&accept.collect::<Vec<_>>().join(","));
    let page = cpu_time::measure(TelemetryPart::MetricsPage, || {
        admin.proxy.telemetry.page(&admin.status_snapshot(clock::now()), format)
    });
    match page {
        Some(page) => {
            ([(CONTENT_TYPE, format.content_type()), (VARY, "accept")], page).into_response()
        }
        None => {
            (StatusCode::NOT_FOUND, "metrics are disabled: set metrics.enabled\n").into_response()
        }
    }
}

pub(super) async fn get_readiness(State(admin): State<Arc<Admin>>) -> Response {
    if admin.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else {
        let now = clock::now();
        let readiness = admin.proxy.pool.readiness(now);
        match admin.unready_reason(&readiness, now) {
            Some(reason) if readiness.is_ready() => {
                (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response()
            }
            Some(states) => {
                let problem = format!("no backend is available ({states})\n");
                (StatusCode::SERVICE_UNAVAILABLE, problem).into_response()
            }
            None => match recent_panics(&Admin::panics_in_window(now)) {
                panics if panics.is_empty() => "ok\n".into_response(),
                panics => format!("ok\nrecent panics: {panics}\n").into_response(),
            },
        }
    }
}

pub(super) async fn get_status(State(admin): State<Arc<Admin>>) -> Response {
    let status = admin.status_snapshot(clock::now());
    let routes = admin.proxy.pool.routes();
    let page = StatusPage {
        version: env!("CARGO_PKG_VERSION"),
        policy: admin.proxy.pool.policy().name(),
        access: access_summary(&admin.proxy.access),
        models: routes.models().iter().map(|model| &*model.id).collect(),
        verdicts: &status.diagnosis.verdicts,
        status: &status,
    };
    without_caching(Json(page).into_response())
}

/// The number of API keys, the open requests of each tenant, and the problem of the last reload of
/// the keys file. `None`: no API keys are configured.
fn access_summary(access: &AccessControl) -> Option<Value> {
    let keys = access.keys()?;
    let open: BTreeMap<_, _> = keys.open().map(|(name, open)| (name.to_string(), open)).collect();
    let problem = access.reload_error().map(|problem| problem.to_string());
    Some(json!({ "keys": keys.len(), "requests_in_flight": open, "problem": problem }))
}

pub(super) async fn get_configuration(State(admin): State<Arc<Admin>>) -> Response {
    without_caching(Json(&*admin.configuration.view()).into_response())
}

pub(super) async fn get_diagnosis(State(admin): State<Arc<Admin>>) -> Response {
    without_caching(Json(&*admin.diagnosis.latest()).into_response())
}

pub(super) async fn post_reload(State(admin): State<Arc<Admin>>) -> Response {
    let (status, result) = match admin.configuration.request_reload().await {
        Ok(summary) => (StatusCode::OK, summary),
        Err(problem) => (StatusCode::INTERNAL_SERVER_ERROR, problem),
    };
    without_caching((status, format!("{result}\n")).into_response())
}

pub(super) async fn get_cache_map(State(admin): State<Arc<Admin>>) -> Response {
    // Counts the buffered records first.
    admin.proxy.telemetry.settle();
    without_caching(Json(admin.cache_map.document(clock::now())).into_response())
}

pub(super) async fn list_decisions(State(admin): State<Arc<Admin>>) -> Response {
    let newest = admin.decisions.newest(MAX_LISTED_DECISIONS);
    let decisions: Vec<Value> = newest.iter().map(|decision| decision.summary()).collect();
    let body = json!({ "capacity": admin.decisions.capacity(), "decisions": decisions });
    without_caching(Json(body).into_response())
}

/// Responds with the decision of one request. A path that is not UTF-8 is treated as an unknown
/// request id.
pub(super) async fn get_decision(
    State(admin): State<Arc<Admin>>,
    request_id: Result<Path<String>, PathRejection>,
) -> Response {
    let decision = request_id.ok().and_then(|Path(id)| admin.decisions.get(&id));
    without_caching(match decision {
        Some(decision) => {
            let mut detail = decision.detail();
            let trace_id = detail["trace_id"].as_str();
            let url = admin.trace_ui_url.as_deref().zip(trace_id);
            detail["trace_url"] = url.map(|(ui, id)| ui.replace("{trace_id}", id)).into();
            Json(detail).into_response()
        }
        None => decision_not_found(admin.decisions.capacity()),
    })
}

/// The response for a request id without a stored decision. `log_size` is the capacity of the
/// decision log.
fn decision_not_found(log_size: usize) -> Response {
    let problem = format!(
        "no decision is stored for this request id: the request has not ended, no backend was \
         chosen for it, or it is not among the last {log_size} (routing.decision_log_size)"
    );
    (StatusCode::NOT_FOUND, Json(json!({ "error": problem }))).into_response()
}
