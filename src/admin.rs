//! HTTP API of the admin listener: metrics, probes, backend status, open streams, routing
//! decisions, diagnosis, the active configuration, reload and drain, and a live page for browsers.

mod authorizer;
mod configuration;
mod drain;
mod page;
pub mod streams;

use crate::backend::pool::BackendPool;
use crate::backend::{self, Availability, Backend, BackendAvailability, Health, Readiness};
use crate::proxy::BodyMemory;
use crate::proxy::access::AccessControl;
use crate::proxy::admission::AdmissionController;
use crate::telemetry::decision_log::DecisionLog;
use crate::telemetry::metrics_registry::ExpositionFormat;
use crate::telemetry::quality::QualityMonitor;
use crate::telemetry::recent_requests::RecentRequests;
use crate::telemetry::status::{
    BackendEstimates, BackendMetricAvailability, BackendStatusSnapshot, ConnectionStatusSnapshot,
    LEAVING_STATE, QueueStatusSnapshot, RequestBodyVitals, RequestLogCounts, SpanCounts,
    StatusSnapshot,
};
use crate::telemetry::{Telemetry, metrics_push, trace_capture};
pub use authorizer::AdminAuthorizer;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
pub use configuration::{ActiveConfiguration, ReloadRequest, ReloadRequests};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::dialect::EngineKind;
use tokenweir_core::engine_metrics::ScrapeError;
use tokenweir_core::observe::ExchangeRegistry;
use tokenweir_core::routing::{LoadEstimator, PromptFingerprint};
use tokenweir_diagnose;
use tokenweir_net::supervise::PanicCounts;
use tokenweir_net::tls::Credentials;

/// The state behind the admin listener.
pub struct Admin {
    /// Authorizes requests to the admin listener.
    pub authorizer: AdminAuthorizer,
    /// The backends.
    pub pool: Arc<BackendPool>,
    /// The API keys of clients and their usage.
    pub access: Arc<AccessControl>,
    /// The admission queue.
    pub admission: Arc<AdmissionController>,
    /// The metrics.
    pub telemetry: Arc<Telemetry>,
    /// The last routing decisions.
    pub decisions: Arc<DecisionLog>,
    /// The open requests.
    pub open_streams: Arc<ExchangeRegistry>,
    /// The memory of request bodies.
    pub body_memory: Arc<BodyMemory>,
    /// The requests that ended recently.
    pub recent_requests: Arc<RecentRequests>,
    /// URL template of the trace UI, with the placeholder `{trace_id}`.
    pub trace_ui_url: Option<String>,
    /// Whether the gateway drains.
    pub draining: Arc<AtomicBool>,
    /// Returns the counts of exported and dropped spans.
    pub span_counts: Box<dyn Fn() -> SpanCounts + Send + Sync>,
    /// Counts the records of the trace capture. `None`: the capture is off.
    pub capture_counter: Option<trace_capture::TraceCaptureStats>,
    /// Returns the counts of written and dropped log lines of requests.
    pub log_counts: Arc<dyn Fn() -> RequestLogCounts + Send + Sync>,
    /// The quality monitor. `None`: it is off.
    pub quality: Option<QualityMonitor>,
    /// Counts the pushes of metrics.
    pub push_counter: metrics_push::MetricsPushStats,
    /// Returns the counts of client connections.
    pub connection_stats: Box<dyn Fn() -> ConnectionStatusSnapshot + Send + Sync>,
    /// The certificates that are reloaded from files.
    pub credentials: Arc<Credentials>,
    /// The latest diagnosis of the backends.
    pub diagnosis: Arc<tokenweir_diagnose::LatestDiagnosis>,
    /// The active configuration.
    pub configuration: Arc<ActiveConfiguration>,
}

/// The routes of the admin listener.
pub fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/metrics", get(get_metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(get_readiness))
        .route("/status", get(get_status))
        .route("/config", get(get_configuration))
        .route("/-/reload", post(post_reload))
        .route("/diagnose", get(get_diagnosis))
        .route("/-/drain", post(drain::drain))
        .route("/-/undrain", post(drain::undrain))
        .route("/streams", get(streams::get_streams))
        .route("/decisions", get(list_decisions))
        .route("/decisions/{*request_id}", get(get_decision))
        .route("/", get(page::get_index))
        .route("/page/{name}", get(page::get_asset))
        .fallback(|| async { (StatusCode::NOT_FOUND, ["not found; ", ENDPOINT_LIST].concat()) })
        .layer(middleware::from_fn_with_state(admin.clone(), authorizer::authorize))
        .with_state(admin)
}

/// The body of a response for an unknown path, and of `/` for clients other than browsers.
const ENDPOINT_LIST: &str = "endpoints: GET /metrics /livez /readyz /status /streams /diagnose \
                             /config /decisions, a page for browsers at /, and POST /-/reload \
                             /-/drain /-/undrain\n";

/// Maximum number of decisions in the response of `/decisions`.
const MAX_LISTED_DECISIONS: usize = 50;

async fn get_metrics(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = ExpositionFormat::accepted(&accept.collect::<Vec<_>>().join(","));
    match admin.telemetry.page(&admin.status_snapshot(clock::now()), format) {
        Some(page) => {
            ([(CONTENT_TYPE, format.content_type()), (VARY, "accept")], page).into_response()
        }
        None => {
            (StatusCode::NOT_FOUND, "metrics are disabled: set metrics.enabled\n").into_response()
        }
    }
}

async fn get_readiness(State(admin): State<Arc<Admin>>) -> Response {
    if admin.draining.load(Ordering::Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else if let Some(states) = unready_reason(&admin.pool.readiness(clock::now())) {
        let problem = format!("no backend is available ({states})\n");
        (StatusCode::SERVICE_UNAVAILABLE, problem).into_response()
    } else {
        "ok\n".into_response()
    }
}

/// Why no backend is available: a summary of the states of all backends. `None`: at least one
/// backend is available.
fn unready_reason(readiness: &Readiness) -> Option<String> {
    (!readiness.is_ready()).then(|| readiness.summary())
}

async fn get_status(State(admin): State<Arc<Admin>>) -> Response {
    let vitals = admin.status_snapshot(clock::now());
    let body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "policy": admin.pool.policy().name(),
        "ready": vitals.ready,
        "not_ready_because": vitals.unready,
        "panic_mode": vitals.panic,
        "draining": vitals.draining,
        "requests_in_flight": vitals.in_flight,
        "queue": vitals.queue,
        "access": access_summary(&admin.access),
        "models": admin.pool.routes().models().iter().map(|model| &*model.id).collect::<Vec<_>>(),
        "backends": vitals.backends,
        "spans": vitals.spans,
        "capture": vitals.capture,
        "quality": vitals.quality,
        "metric_pushes": vitals.pushes,
        "connections": vitals.connections,
        "request_bodies": vitals.request_bodies,
        "certificates": vitals.tls,
        "config_reloads": vitals.reloads,
        "verdicts": vitals.diagnosis.verdicts,
    });
    without_caching(Json(body).into_response())
}

/// The open requests of each tenant, and the problem of the last reload of the keys file. `None`:
/// no API keys are configured.
fn access_summary(access: &AccessControl) -> Option<Value> {
    let keys = access.keys()?;
    let open: BTreeMap<_, _> = keys.open().map(|(name, open)| (name.to_string(), open)).collect();
    let problem = access.reload_error().map(|problem| problem.to_string());
    Some(json!({ "keys": keys.len(), "requests_in_flight": open, "problem": problem }))
}

async fn get_configuration(State(admin): State<Arc<Admin>>) -> Response {
    without_caching(Json(&*admin.configuration.view()).into_response())
}

async fn get_diagnosis(State(admin): State<Arc<Admin>>) -> Response {
    without_caching(Json(&*admin.diagnosis.latest()).into_response())
}

async fn post_reload(State(admin): State<Arc<Admin>>) -> Response {
    let (status, result) = match admin.configuration.request_reload().await {
        Ok(changed) => (StatusCode::OK, changed),
        Err(problem) => (StatusCode::INTERNAL_SERVER_ERROR, problem),
    };
    without_caching((status, format!("{result}\n")).into_response())
}

async fn list_decisions(State(admin): State<Arc<Admin>>) -> Response {
    let newest = admin.decisions.newest(MAX_LISTED_DECISIONS);
    let decisions: Vec<Value> = newest.iter().map(|decision| decision.summary()).collect();
    let body = json!({ "most": admin.decisions.most(), "newest": decisions });
    without_caching(Json(body).into_response())
}

/// The decision of one request. A path that is not UTF-8 is treated as an unknown request id.
async fn get_decision(
    State(admin): State<Arc<Admin>>,
    request_id: Result<Path<String>, PathRejection>,
) -> Response {
    let decision = request_id.ok().and_then(|Path(id)| admin.decisions.get(&id));
    without_caching(match decision {
        Some(decision) => Json(decision.detail()).into_response(),
        None => decision_not_found(admin.decisions.most()),
    })
}

fn decision_not_found(log_size: usize) -> Response {
    let problem = format!(
        "no decision is stored for this request id: the request has not ended, no backend was \
         chosen for it, or it is not among the last {log_size} (routing.decision_log_size)"
    );
    (StatusCode::NOT_FOUND, Json(json!({ "error": problem }))).into_response()
}

fn without_caching(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Admin {
    /// The state of the gateway at `now`. Buffered records are counted first, so that every request
    /// that ended before the call is included, here and in the metrics.
    pub fn status_snapshot(&self, now: Instant) -> StatusSnapshot {
        self.telemetry.settle();
        let draining = self.draining.load(Ordering::Relaxed);
        let readiness = self.pool.readiness(now);
        StatusSnapshot {
            in_flight: self.open_streams.open(),
            ready: !draining && readiness.is_ready(),
            unready: unready_reason(&readiness),
            panic: readiness.is_panic,
            draining,
            queue: queue_status(&self.admission),
            backends: backend_statuses(&self.pool, &readiness, now),
            short_list_bytes: self.pool.candidate_sampler_bytes(),
            diagnosis: self.diagnosis.latest(),
            models: self.pool.labelled_models(now),
            tenants: tenant_labels(&self.access),
            spans: (self.span_counts)(),
            capture: self
                .capture_counter
                .as_ref()
                .map(trace_capture::TraceCaptureStats::counts)
                .unwrap_or_default(),
            logs: (self.log_counts)(),
            quality: self.quality.as_ref().map(|quality| quality.vitals(now)),
            pushes: self.push_counter.counts(),
            connections: (self.connection_stats)(),
            request_bodies: RequestBodyVitals {
                bytes: self.body_memory.used_bytes(),
                limit: self.body_memory.limit_bytes(),
            },
            tls: self.credentials.counts(),
            reloads: self.configuration.reloads(),
            panics: PanicCounts::snapshot(),
        }
    }
}

fn tenant_labels(access: &AccessControl) -> Vec<String> {
    access.keys().iter().flat_map(|keys| keys.labels()).map(ToString::to_string).collect()
}

fn queue_status(admission: &AdmissionController) -> Vec<QueueStatusSnapshot> {
    let waiting = admission.waiting_by_class().into_iter();
    waiting
        .map(|(class, waiting)| QueueStatusSnapshot { class: class.to_string(), waiting })
        .collect()
}

/// The status of each backend of the pool, and of each removed backend that still has open
/// requests. A removed backend with the name of a current one is merged into it.
fn backend_statuses(
    pool: &BackendPool,
    readiness: &Readiness,
    now: Instant,
) -> Vec<BackendStatusSnapshot> {
    let to_status = |availability: &BackendAvailability| BackendStatusSnapshot {
        state: availability.availability.as_str(),
        up: availability.is_up,
        ..backend_status(&availability.backend, now)
    };
    let mut statuses: Vec<BackendStatusSnapshot> =
        readiness.backends.iter().map(to_status).collect();
    for leaving in pool.retiring_backends() {
        let leaving = BackendStatusSnapshot {
            health: LEAVING_STATE,
            state: LEAVING_STATE,
            up: false,
            ..backend_status(&leaving, now)
        };
        match statuses.iter_mut().find(|other| other.backend == leaving.backend) {
            Some(same) => {
                same.in_flight += leaving.in_flight;
                same.stalled += leaving.stalled;
            }
            None => statuses.push(leaving),
        }
    }
    statuses
}

/// The status of one backend at `now`, without regard to panic mode.
pub fn backend_status(backend: &Backend, now: Instant) -> BackendStatusSnapshot {
    let state = backend.health.state();
    let availability = backend.availability(now);
    let load = state.sample.map(|sample| sample.load).unwrap_or_default();
    let age = state.sample.map(|sample| now.saturating_duration_since(sample.scraped_at));
    BackendStatusSnapshot {
        backend: backend.identity.id.to_string(),
        url: backend.identity.address.to_string(),
        health: state.health.as_str(),
        state: availability.as_str(),
        up: availability == Availability::Available,
        breaker: backend.health.breaker.state().as_str(),
        ejections: backend.health.breaker.ejections(),
        reason: unavailability_reason(&state),
        weight: backend.weight(),
        drained: backend.health.is_drained(),
        version: state.version.as_deref().map(Into::into),
        models: state.models.clone().unwrap_or_default(),
        in_flight: backend.load.in_flight(),
        stalled: backend.load.stalled_streams(),
        stalls: backend.load.stall_count(),
        kv_usage: load.kv_usage,
        waiting: load.waiting,
        running: load.running,
        preemptions: load.preemptions,
        kv_capacity_tokens: load.capacity(),
        asleep: load.is_asleep(),
        dialect: load.server.map(EngineKind::as_str),
        signals: metric_availability(&state),
        sample_age_seconds: age.map(|age| age.as_secs_f64()),
        metrics_error: state.metrics_error.map(ScrapeError::as_str),
        learned: learned_estimates(&backend.load.estimator, now),
    }
}

fn learned_estimates(estimator: &LoadEstimator, now: Instant) -> BackendEstimates {
    let learned = estimator.learned();
    let prefill = learned.prefill();
    BackendEstimates {
        certainty: estimator.certainty(now),
        prefill_tokens_per_second: 1.0 / prefill.per_token,
        prefill_base_seconds: prefill.base,
        prefill_backlog_tokens: estimator.candidate(&PromptFingerprint::default(), now).backlog,
        ttft_seconds: learned.ttft(),
        bytes_per_token: learned.tokens_per_byte().recip(),
        output_tokens: learned.output_tokens(),
        prefix_retention: learned.retention(),
        prefix_index_bytes: estimator.prefix_table_bytes(),
    }
}

/// Why a backend gets no requests.
fn unavailability_reason(state: &backend::BackendState) -> Option<String> {
    match state.health {
        Health::Up if state.is_asleep() => Some("the engine is asleep".to_owned()),
        Health::Up => None,
        Health::Down | Health::Unknown => state.reason.as_deref().map(Into::into),
    }
}

fn metric_availability(state: &backend::BackendState) -> BackendMetricAvailability {
    let mut signals = BackendMetricAvailability::default();
    for (signal, is_available) in state.signals().each() {
        let names = if is_available { &mut signals.offered } else { &mut signals.missing };
        names.push(signal.name);
    }
    signals
}
