//! The operators' port: metrics, probes, the state of the replicas, why requests went where they
//! went, the configuration in force. And a page for people, with all that moves.

mod configuration;
mod drain;
mod guard;
pub mod live;
mod page;

use crate::backend::pool::Pool;
use crate::backend::{self, Availability, Backend, Health, Readiness, Standing};
use crate::proxy::BodyMemory;
use crate::proxy::access::Access;
use crate::proxy::admission::Admission;
use crate::telemetry::explain::Explanations;
use crate::telemetry::exposition::Format;
use crate::telemetry::quality::Quality;
use crate::telemetry::recent::Recent;
use crate::telemetry::vitals::{
    BackendVitals, ConnectionVitals, LEAVING, LearnedVitals, LogCounts, QueueVitals,
    RequestBodyVitals, SignalVitals, SpanCounts, Vitals,
};
use crate::telemetry::{Telemetry, capture, push};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
pub use configuration::{Configuration, Request, Requests};
pub use guard::Guard;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::dialect::Server;
use tokenweir_core::observe::Live;
use tokenweir_core::routing::{Ledger, Prompt};
use tokenweir_core::signals::ScrapeError;
use tokenweir_diagnose;
use tokenweir_net::supervise::Panics;
use tokenweir_net::tls::Credentials;

/// What the operators' port shows.
pub struct Admin {
    /// Who may see it.
    pub guard: Guard,
    /// The replicas.
    pub pool: Arc<Pool>,
    /// Who may send them requests.
    pub access: Arc<Access>,
    /// Who waits for them.
    pub admission: Arc<Admission>,
    /// The metrics.
    pub telemetry: Arc<Telemetry>,
    /// The last decisions.
    pub explanations: Arc<Explanations>,
    /// The requests that are open.
    pub live: Arc<Live>,
    /// The memory of their bodies.
    pub body_memory: Arc<BodyMemory>,
    /// Those that ended lately.
    pub recent: Arc<Recent>,
    /// Where a trace can be looked at: a URL with `{trace_id}` in it.
    pub trace_ui: Option<String>,
    /// Set when the gateway shuts down.
    pub draining: Arc<AtomicBool>,
    /// What became of spans so far.
    pub spans: Box<dyn Fn() -> SpanCounts + Send + Sync>,
    /// What counts the records of a capture, if there is one.
    pub capture: Option<capture::Counter>,
    /// What became of what is logged of requests so far.
    pub logs: Arc<dyn Fn() -> LogCounts + Send + Sync>,
    /// Who looks whether answers are as good as they were, if somebody does.
    pub quality: Option<Quality>,
    /// What counts the pushes of the metrics.
    pub pushes: push::Counter,
    /// How the connections of clients are.
    pub connections: Box<dyn Fn() -> ConnectionVitals + Send + Sync>,
    /// The certificates.
    pub credentials: Arc<Credentials>,
    /// What is the matter with the replicas.
    pub diagnosis: Arc<tokenweir_diagnose::Board>,
    /// The configuration in force.
    pub configuration: Arc<Configuration>,
}

/// The routes of the operators' port.
pub fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/status", get(status))
        .route("/config", get(config))
        .route("/-/reload", post(reload))
        .route("/diagnose", get(diagnosis))
        .route("/-/drain", post(drain::drain))
        .route("/-/undrain", post(drain::undrain))
        .route("/live", get(live::live))
        .route("/explain", get(newest))
        .route("/explain/{*request_id}", get(explain))
        .route("/", get(page::index))
        .route("/page/{name}", get(page::asset))
        .fallback(|| async { (StatusCode::NOT_FOUND, ["not found; ", INDEX].concat()) })
        .layer(middleware::from_fn_with_state(admin.clone(), guard::check))
        .with_state(admin)
}

const INDEX: &str = "here are /metrics /livez /readyz /status /live /diagnose /config /explain, a page for \
                     browsers at /, and POST /-/reload /-/drain /-/undrain\n";

/// Decisions that `/explain` lists.
const NEWEST: usize = 50;

async fn metrics(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(&accept.collect::<Vec<_>>().join(","));
    match admin.telemetry.page(&admin.vitals(clock::now()), format) {
        Some(page) => {
            ([(CONTENT_TYPE, format.content_type()), (VARY, "accept")], page).into_response()
        }
        None => (StatusCode::NOT_FOUND, "metrics are off: see metrics.enabled\n").into_response(),
    }
}

async fn ready(State(admin): State<Arc<Admin>>) -> Response {
    if admin.draining.load(Ordering::Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else if let Some(why) = unready(&admin.pool.readiness(clock::now())) {
        let why = format!("no replica may be sent requests ({why})\n");
        (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
    } else {
        "ok\n".into_response()
    }
}

/// Why no replica may be sent requests: the states of all. `None`: one may.
fn unready(readiness: &Readiness) -> Option<String> {
    (!readiness.is_ready()).then(|| readiness.summary())
}

async fn status(State(admin): State<Arc<Admin>>) -> Response {
    let vitals = admin.vitals(clock::now());
    let body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "policy": admin.pool.policy().name(),
        "ready": vitals.ready,
        "not_ready_because": vitals.unready,
        "panic_mode": vitals.panic,
        "draining": vitals.draining,
        "requests_in_flight": vitals.in_flight,
        "queue": vitals.queue,
        "access": access(&admin.access),
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
    fresh(Json(body).into_response())
}

/// How many requests of each tenant are open, and what is wrong with the file of keys. Null, if
/// nobody needs a key.
fn access(access: &Access) -> Option<Value> {
    let keys = access.keys()?;
    let open: BTreeMap<_, _> = keys.open().map(|(name, open)| (name.to_string(), open)).collect();
    let problem = access.problem().map(|problem| problem.to_string());
    Some(json!({ "keys": keys.len(), "requests_in_flight": open, "problem": problem }))
}

async fn config(State(admin): State<Arc<Admin>>) -> Response {
    fresh(Json(&*admin.configuration.view()).into_response())
}

async fn diagnosis(State(admin): State<Arc<Admin>>) -> Response {
    fresh(Json(&*admin.diagnosis.latest()).into_response())
}

async fn reload(State(admin): State<Arc<Admin>>) -> Response {
    let (status, told) = match admin.configuration.reload().await {
        Ok(changed) => (StatusCode::OK, changed),
        Err(problem) => (StatusCode::INTERNAL_SERVER_ERROR, problem),
    };
    fresh((status, format!("{told}\n")).into_response())
}

async fn newest(State(admin): State<Arc<Admin>>) -> Response {
    let newest = admin.explanations.newest(NEWEST);
    let decisions: Vec<Value> = newest.iter().map(|explanation| explanation.summary()).collect();
    let body = json!({ "most": admin.explanations.most(), "newest": decisions });
    fresh(Json(body).into_response())
}

/// A path that is not UTF-8 is no request id.
async fn explain(
    State(admin): State<Arc<Admin>>,
    request_id: Result<Path<String>, PathRejection>,
) -> Response {
    let found = request_id.ok().and_then(|Path(id)| admin.explanations.get(&id));
    fresh(match found {
        Some(explanation) => Json(explanation.detail()).into_response(),
        None => unexplained(admin.explanations.most()),
    })
}

fn unexplained(most: usize) -> Response {
    let problem = format!(
        "no decision is kept for this request id: the request has not ended, no replica was \
         chosen for it, or it is not among the last {most} (routing.explain_ring)"
    );
    (StatusCode::NOT_FOUND, Json(json!({ "error": problem }))).into_response()
}

fn fresh(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Admin {
    /// The state of the gateway at `now`. What has ended until then has been counted when this
    /// returns, here and in the metrics.
    pub fn vitals(&self, now: Instant) -> Vitals {
        self.telemetry.settle();
        let draining = self.draining.load(Ordering::Relaxed);
        let readiness = self.pool.readiness(now);
        Vitals {
            in_flight: self.live.open(),
            ready: !draining && readiness.is_ready(),
            unready: unready(&readiness),
            panic: readiness.is_panic,
            draining,
            queue: queue(&self.admission),
            backends: backends(&self.pool, &readiness, now),
            short_list_bytes: self.pool.short_list_bytes(),
            diagnosis: self.diagnosis.latest(),
            models: self.pool.labelled_models(now),
            tenants: tenants(&self.access),
            spans: (self.spans)(),
            capture: self.capture.as_ref().map(capture::Counter::counts).unwrap_or_default(),
            logs: (self.logs)(),
            quality: self.quality.as_ref().map(|quality| quality.vitals(now)),
            pushes: self.pushes.counts(),
            connections: (self.connections)(),
            request_bodies: RequestBodyVitals {
                bytes: self.body_memory.held(),
                limit: self.body_memory.limit(),
            },
            tls: self.credentials.counts(),
            reloads: self.configuration.reloads(),
            panics: Panics::now(),
        }
    }
}

fn tenants(access: &Access) -> Vec<String> {
    access.keys().iter().flat_map(|keys| keys.labels()).map(ToString::to_string).collect()
}

fn queue(admission: &Admission) -> Vec<QueueVitals> {
    let waiting = admission.waiting().into_iter();
    waiting.map(|(class, waiting)| QueueVitals { class: class.to_string(), waiting }).collect()
}

/// Each replica of the fleet, and those that went away and still have requests. One that went away
/// and came back as another is told as one.
fn backends(pool: &Pool, readiness: &Readiness, now: Instant) -> Vec<BackendVitals> {
    let standing = |it: &Standing| BackendVitals {
        state: it.availability.as_str(),
        up: it.is_up,
        ..vitals(&it.backend, now)
    };
    let mut told: Vec<BackendVitals> = readiness.backends.iter().map(standing).collect();
    for leaving in pool.leaving() {
        let leaving =
            BackendVitals { health: LEAVING, state: LEAVING, up: false, ..vitals(&leaving, now) };
        match told.iter_mut().find(|other| other.backend == leaving.backend) {
            Some(same) => {
                same.in_flight += leaving.in_flight;
                same.stalled += leaving.stalled;
            }
            None => told.push(leaving),
        }
    }
    told
}

/// One replica at `now`, whatever the others are.
pub fn vitals(backend: &Backend, now: Instant) -> BackendVitals {
    let state = backend.state();
    let availability = backend.availability(now);
    let load = state.sample.map(|sample| sample.load).unwrap_or_default();
    let age = state.sample.map(|sample| now.saturating_duration_since(sample.at));
    BackendVitals {
        backend: backend.id.to_string(),
        url: backend.address.to_string(),
        health: state.health.as_str(),
        state: availability.as_str(),
        up: availability == Availability::Available,
        breaker: backend.breaker.standing().as_str(),
        ejections: backend.breaker.ejections(),
        reason: reason(&state),
        weight: backend.weight(),
        drained: backend.is_drained(),
        version: state.version.as_deref().map(Into::into),
        models: state.models.clone().unwrap_or_default(),
        in_flight: backend.in_flight(),
        stalled: backend.stalled(),
        stalls: backend.stalls(),
        kv_usage: load.kv_usage,
        waiting: load.waiting,
        running: load.running,
        preemptions: load.preemptions,
        kv_capacity_tokens: load.capacity(),
        asleep: load.is_asleep(),
        dialect: load.server.map(Server::as_str),
        signals: signals(&state),
        sample_age_seconds: age.map(|age| age.as_secs_f64()),
        metrics_error: state.metrics_error.map(ScrapeError::as_str),
        learned: learned(&backend.ledger, now),
    }
}

fn learned(ledger: &Ledger, now: Instant) -> LearnedVitals {
    let learned = ledger.learned();
    let prefill = learned.prefill();
    LearnedVitals {
        certainty: ledger.certainty(now),
        prefill_tokens_per_second: 1.0 / prefill.per_token,
        prefill_base_seconds: prefill.base,
        prefill_backlog_tokens: ledger.candidate(&Prompt::default(), now).backlog,
        ttft_seconds: learned.ttft(),
        bytes_per_token: learned.tokens_per_byte().recip(),
        output_tokens: learned.output_tokens(),
        prefix_retention: learned.retention(),
        prefix_index_bytes: ledger.prefix_bytes(),
    }
}

/// Why a replica is sent nothing.
fn reason(state: &backend::State) -> Option<String> {
    match state.health {
        Health::Up if state.is_asleep() => Some("its engine sleeps".to_owned()),
        Health::Up => None,
        Health::Down | Health::Unknown => state.reason.as_deref().map(Into::into),
    }
}

fn signals(state: &backend::State) -> SignalVitals {
    let mut signals = SignalVitals::default();
    for (signal, is_told) in state.signals().each() {
        let names = if is_told { &mut signals.offered } else { &mut signals.missing };
        names.push(signal.name);
    }
    signals
}
