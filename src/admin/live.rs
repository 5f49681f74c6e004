//! What the page and `tokenweir top` show, as one document: the replicas, the streams that are open,
//! and what ended lately. It is gathered when somebody asks.

use super::Admin;
use crate::clock;
use crate::diagnose::Verdict;
use crate::observe::{Glance, OpenStream};
use crate::record::Caller;
use crate::telemetry::recent::{Ended, LastMinute, Totals};
use crate::telemetry::vitals::BackendVitals;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One moment of the gateway. What another version leaves out is empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// The gateway's version.
    pub version: String,
    /// The policy that chooses replicas.
    pub policy: String,
    /// Whether it takes requests.
    pub ready: bool,
    /// Why no replica may be sent requests: the states of all. `None`: one may.
    pub unready: Option<String>,
    /// Whether so many replicas are ejected that ejections are ignored.
    pub panic: bool,
    /// Whether it is shutting down.
    pub draining: bool,
    /// Seconds since its start. Rates are what a total grew by, over what this did.
    pub uptime_seconds: f64,
    /// Requests between their first byte and their last.
    pub requests_in_flight: usize,
    /// Requests that wait for a replica with room, by class.
    pub queue: Vec<Waiting>,
    /// Each replica.
    pub replicas: Vec<Replica>,
    /// The streams that are open.
    pub streams: Streams,
    /// All since the start; the tokens of streams that are open are among them.
    pub totals: Totals,
    /// What ended in the last minute.
    pub last_minute: LastMinute,
    /// The last requests that ended and the last slow ones, the newest first.
    pub ended: Vec<EndedRequest>,
    /// What is wrong, as `/status` says it.
    pub verdicts: Vec<Verdict>,
    /// Where a trace can be looked at: a URL with `{trace_id}` in it.
    pub trace_ui: Option<String>,
}

/// A class of the waiting room.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Its name.
    pub class: String,
    /// How many wait.
    pub waiting: usize,
}

/// One replica.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Replica {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// `up`, `down`, `unknown` or `leaving`.
    pub health: String,
    /// How it stands with its circuit breaker.
    pub breaker: String,
    /// Whether it may be sent new requests, and if not, why: `available`, `ejected`, `asleep`,
    /// `zero_weight`, `drained`, `down`, `unknown` or `leaving`.
    pub state: String,
    /// Whether it is sent new requests now: in panic mode also one that is ejected.
    pub up: bool,
    /// Why it is sent nothing.
    pub reason: Option<String>,
    /// Whether an operator wants it to get nothing new.
    pub drained: bool,
    /// Its share of the work, relative to the others', as configured; 0 while it is drained.
    pub weight: u32,
    /// Its models.
    pub models: Vec<String>,
    /// How full its KV cache is, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV cache holds.
    pub kv_capacity_tokens: Option<u64>,
    /// Requests that wait in its engine.
    pub waiting: Option<f64>,
    /// Requests that run in its engine.
    pub running: Option<f64>,
    /// Requests of this gateway at it.
    pub in_flight: u32,
    /// Its streams that are silent for too long.
    pub stalled: u32,
    /// Its part, from 0 to 1, of the requests that ended in the last minute or are in flight.
    pub share: Option<f64>,
    /// Mean time to a first output lately, in seconds.
    pub ttft_seconds: Option<f64>,
    /// How old is what it says of itself.
    pub sample_age_seconds: Option<f64>,
    /// Why the last look at its metrics failed.
    pub metrics_error: Option<String>,
}

/// The streams that are open: those whose answer's head has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Streams {
    /// How many there are.
    pub count: usize,
    /// How many are in each phase.
    pub phases: BTreeMap<String, usize>,
    /// Those that have been open longest, up to 200.
    pub oldest: Vec<Stream>,
}

/// One stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    /// How many had been opened before.
    pub number: u64,
    /// The `x-request-id`.
    pub request_id: String,
    /// The model as a label.
    pub model: String,
    /// The replica.
    pub replica: Option<String>,
    /// The tenant as a label.
    pub tenant: Option<String>,
    /// `prefill`, `decode`, `stalled`, `held` by its client, or `ending`.
    pub phase: String,
    /// Since the request head was read.
    pub age_seconds: f64,
    /// Tokens so far, by the number of events where they do not tell.
    pub tokens: u64,
    /// Since the last output came.
    pub silence_seconds: Option<f64>,
}

/// A request that ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndedRequest {
    /// How many had ended before.
    pub number: u64,
    /// The `x-request-id`.
    pub request_id: String,
    /// When it began.
    pub started: String,
    /// Since it ended.
    pub age_seconds: f64,
    /// The model as a label.
    pub model: String,
    /// The replica that was asked last.
    pub replica: Option<String>,
    /// The tenant as a label.
    pub tenant: Option<String>,
    /// How it ended.
    pub outcome: String,
    /// Time to first token, in the client's view.
    pub ttft_seconds: Option<f64>,
    /// How long it took.
    pub duration_seconds: f64,
    /// Tokens of its answer.
    pub output_tokens: Option<u64>,
    /// Why it was slow, if it was.
    pub slow: Option<String>,
    /// Its trace, if it is kept.
    pub trace_id: Option<String>,
}

/// Streams that are told one by one.
const MOST_STREAMS: usize = 200;

/// The document, as JSON.
pub(super) async fn live(State(admin): State<Arc<Admin>>) -> Response {
    super::fresh(Json(document(&admin, clock::now())).into_response())
}

fn document(admin: &Admin, now: Instant) -> Document {
    // Before the streams: one that ends between is counted once and missed once, never twice.
    let vitals = admin.vitals(now);
    let (totals, last_minute) = (admin.recent.totals(), admin.recent.last_minute(now));
    let glance = admin.live.glance(MOST_STREAMS, now);
    let waiting = |class: &crate::telemetry::vitals::QueueVitals| Waiting {
        class: class.class.clone(),
        waiting: class.waiting,
    };
    Document {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        policy: admin.pool.policy().name().to_owned(),
        ready: vitals.ready,
        unready: vitals.unready.clone(),
        panic: vitals.panic,
        draining: vitals.draining,
        uptime_seconds: seconds(now.saturating_duration_since(admin.live.epoch())),
        requests_in_flight: vitals.in_flight,
        queue: vitals.queue.iter().map(waiting).collect(),
        replicas: replicas(&vitals.backends, &last_minute),
        totals: Totals { output_tokens: totals.output_tokens + glance.tokens, ..totals },
        streams: streams(&glance, now),
        last_minute,
        ended: admin.recent.ended().iter().map(|one| ended(one, now)).collect(),
        verdicts: vitals.diagnosis.verdicts.clone(),
        trace_ui: admin.trace_ui.clone(),
    }
}

fn replicas(backends: &[BackendVitals], last_minute: &LastMinute) -> Vec<Replica> {
    let requests = |backend: &BackendVitals| {
        let ended = last_minute.by_replica.get(&backend.backend).copied().unwrap_or_default();
        (ended + u64::from(backend.in_flight)) as f64
    };
    let all: f64 = backends.iter().map(requests).sum();
    let replica = |backend: &BackendVitals| Replica {
        name: backend.backend.clone(),
        url: backend.url.clone(),
        health: backend.health.to_owned(),
        breaker: backend.breaker.to_owned(),
        state: backend.state.to_owned(),
        up: backend.up,
        reason: backend.reason.clone(),
        drained: backend.drained,
        weight: backend.weight,
        models: backend.models.iter().map(|model| model.id.to_string()).collect(),
        kv_usage: backend.kv_usage,
        kv_capacity_tokens: backend.kv_capacity_tokens,
        waiting: backend.waiting,
        running: backend.running,
        in_flight: backend.in_flight,
        stalled: backend.stalled,
        share: (all > 0.0).then(|| requests(backend) / all),
        ttft_seconds: backend.learned.ttft_seconds,
        sample_age_seconds: backend.sample_age_seconds,
        metrics_error: backend.metrics_error.map(Into::into),
    };
    backends.iter().map(replica).collect()
}

fn streams(glance: &Glance, now: Instant) -> Streams {
    let stream = |stream: &OpenStream| {
        let subject = &stream.subject;
        Stream {
            number: stream.number,
            request_id: subject.request_id.as_str().to_owned(),
            model: subject.model.name().to_owned(),
            replica: subject.backend.as_ref().map(ToString::to_string),
            tenant: tenant(subject.caller.as_ref()),
            phase: stream.phase.as_str().to_owned(),
            age_seconds: seconds(now.saturating_duration_since(subject.accepted)),
            tokens: stream.tokens,
            silence_seconds: stream.silence.map(seconds),
        }
    };
    let phases = glance.phases.iter().map(|(phase, count)| (phase.as_str().to_owned(), *count));
    Streams {
        count: glance.count,
        phases: phases.collect(),
        oldest: glance.oldest.iter().map(stream).collect(),
    }
}

fn ended(request: &Ended, now: Instant) -> EndedRequest {
    let age = request.ended.map(|ended| now.saturating_duration_since(ended));
    EndedRequest {
        number: request.number,
        request_id: request.request_id.to_string(),
        started: humantime::format_rfc3339_millis(request.started).to_string(),
        age_seconds: age.map(seconds).unwrap_or_default(),
        model: request.model.name().to_owned(),
        replica: request.backend.as_ref().map(ToString::to_string),
        tenant: tenant(request.caller.as_ref()),
        outcome: request.outcome.as_str().to_owned(),
        ttft_seconds: request.ttft.map(seconds),
        duration_seconds: seconds(request.duration),
        output_tokens: request.output_tokens,
        slow: request.slow.map(|cause| cause.as_str().to_owned()),
        trace_id: request.trace_id.map(|id| format!("{id:032x}")),
    }
}

fn tenant(caller: Option<&Arc<Caller>>) -> Option<String> {
    caller.map(|caller| caller.label().to_owned())
}

/// To the microsecond: more would be noise.
fn seconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}
