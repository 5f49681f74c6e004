//! What the page and `tokenweir top` show, as one document: the replicas, the streams that are open,
//! and what ended lately. It is gathered when somebody asks.

use super::Admin;
use crate::telemetry::recent::Ended;
use crate::telemetry::vitals::BackendVitals;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_api::{
    Document, EndedRequest, LastMinute, Replica, Stream, Streams, Totals, Waiting,
};
use tokenweir_core::clock;
use tokenweir_core::observe::{Glance, OpenStream};
use tokenweir_core::record::Caller;

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
