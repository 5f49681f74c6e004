//! `GET /streams`: the JSON document for the live page and `tokenweir top`. It contains the backends, the open
//! streams and the requests that ended recently. Each request to this path builds it anew.

use super::response::document;
use super::state::{Admin, LatestDiagnosis};
use axum::extract::State;
use axum::response::Response;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_api::{
    BackendMinute, BackendSummary, EndedRequest, GatewaySnapshot, LastMinute, RequestTotals,
    StreamSummary, StreamsSummary, condition_counts, set_conditions,
};
use tokenweir_gateway::status::BackendStatusSnapshot;
use tokenweir_gateway::telemetry::recent_requests::FinishedRequest;
use tokenweir_protocol::clock;
use tokenweir_request::observe::{OpenStream, OpenStreamsSnapshot};
use tokenweir_request::record::ClientIdentity;

/// Maximum number of streams that the document of `/streams` lists.
const MAX_LISTED_STREAMS: usize = 200;

pub(super) async fn get_streams(State(admin): State<Arc<Admin>>) -> Response {
    document(build_document(&admin, clock::now()))
}

fn build_document(admin: &Admin, now: Instant) -> GatewaySnapshot {
    // The totals of ended requests are read before the open streams. The tokens of a stream that ends in
    // between are then missing for a moment, but are never counted twice.
    let status = admin.status_snapshot(now);
    let totals = admin.recent_requests.totals();
    let last_minute = admin.recent_requests.last_minute(now);
    let snapshot = admin.proxy.open_streams.snapshot(MAX_LISTED_STREAMS, now);
    let LatestDiagnosis { diagnosis } = status.blocks.get_or_default();
    let mut backends = backend_documents(&status.backends, &last_minute);
    set_conditions(&mut backends, &diagnosis.verdicts);
    let groups = admin.recent_requests.groups(&admin.proxy.open_streams, now);
    GatewaySnapshot {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        policy: admin.proxy.pool.policy().name().to_owned(),
        state: status.state,
        state_reasons: status.state_reasons.clone(),
        ready: status.ready,
        unready_reason: status.unready_reason.clone(),
        panic_mode: status.panic_mode,
        draining: status.draining,
        uptime_seconds: rounded_seconds(
            now.saturating_duration_since(admin.proxy.open_streams.started_at()),
        ),
        requests_in_flight: status.requests_in_flight,
        queue: status.queue.clone(),
        longest_wait_seconds: admin
            .proxy
            .admission
            .oldest_waiting()
            .map(|entered| rounded_seconds(now.saturating_duration_since(entered))),
        held_because: admin.proxy.admission.held_because(now),
        backends_by_condition: condition_counts(&backends),
        backends,
        totals: RequestTotals {
            output_tokens: totals.output_tokens + snapshot.tokens,
            ..totals
        },
        streams: stream_summary(&snapshot, now),
        last_minute,
        harm: status.harm.clone(),
        changes: status.changes.clone(),
        clients: status.clients.clone(),
        models: groups.models,
        tenants: groups.tenants,
        history: admin.recent_requests.history(now),
        ended: admin
            .recent_requests
            .ended()
            .iter()
            .map(|request| ended_request(request, now))
            .collect(),
        verdicts: diagnosis.verdicts.clone(),
        trace_ui: admin.trace_ui_url.clone(),
        metrics_read_seconds_ago: status.metrics_read_seconds_ago.map(f64::round),
    }
}

/// Builds the entries of the backends in the document of `/streams`. The share of a backend is its part of the
/// requests of all backends. Requests that ended in the last minute or are in flight count.
fn backend_documents(
    backends: &[BackendStatusSnapshot],
    last_minute: &LastMinute,
) -> Vec<BackendSummary> {
    let minute = |backend: &BackendStatusSnapshot| {
        last_minute
            .by_backend
            .get(&backend.backend)
            .cloned()
            .unwrap_or_default()
    };
    let recent_requests = |backend: &BackendStatusSnapshot| {
        (minute(backend).requests + u64::from(backend.facts.in_flight)) as f64
    };
    let total: f64 = backends.iter().map(recent_requests).sum();
    let document = |backend: &BackendStatusSnapshot| {
        let BackendMinute {
            attempts,
            failed_attempts,
            client_errors,
            streams,
            ttft_seconds,
            ..
        } = minute(backend);
        let share_of_attempts = |count: u64| (attempts > 0).then(|| count as f64 / attempts as f64);
        let mut summary = BackendSummary {
            name: backend.backend.clone(),
            facts: backend.facts.clone(),
            share: (total > 0.0).then(|| recent_requests(backend) / total),
            ttft_seconds,
            ended_streams: streams,
            failed_attempts,
            failed_share: share_of_attempts(failed_attempts),
            client_error_share: share_of_attempts(client_errors.values().sum()),
            client_errors,
            // `set_conditions` sets the condition later, when the entries of all backends exist.
            ..BackendSummary::default()
        };
        backend.blocks.summarize(&mut summary);
        summary
    };
    backends.iter().map(document).collect()
}

fn stream_summary(snapshot: &OpenStreamsSnapshot, now: Instant) -> StreamsSummary {
    let stream = |stream: &OpenStream| {
        let subject = &stream.subject;
        StreamSummary {
            number: stream.number,
            request_id: subject.request_id.as_str().to_owned(),
            model: subject.model.name().to_owned(),
            backend: subject.backend.as_ref().map(ToString::to_string),
            tenant: tenant_label(subject.caller.as_ref()),
            client: subject.client.to_string(),
            prompt_tokens: subject.prompt_tokens,
            phase: stream.phase.as_str().to_owned(),
            age_seconds: rounded_seconds(now.saturating_duration_since(subject.accepted)),
            tokens: stream.tokens,
            last_output_age_seconds: stream.since_last_output.map(rounded_seconds),
        }
    };
    let phases = snapshot
        .phases
        .iter()
        .map(|(phase, count)| (phase.as_str().to_owned(), *count));
    StreamsSummary {
        count: snapshot.count,
        phases: phases.collect(),
        oldest: snapshot.oldest.iter().map(stream).collect(),
    }
}

fn ended_request(request: &FinishedRequest, now: Instant) -> EndedRequest {
    let facts = &request.facts;
    let age = request
        .ended
        .map(|ended| now.saturating_duration_since(ended));
    EndedRequest {
        number: request.number,
        request_id: facts.request_id.to_string(),
        started: humantime::format_rfc3339_millis(facts.started).to_string(),
        age_seconds: age.map(rounded_seconds).unwrap_or_default(),
        model: facts.model.name().to_owned(),
        backend: request.backend.as_ref().map(ToString::to_string),
        tenant: tenant_label(facts.caller.as_ref()),
        client: facts.client.to_string(),
        outcome: facts.outcome.as_str().to_owned(),
        ttft_seconds: facts.ttft.map(rounded_seconds),
        first_answer_seconds: facts.first_answer.map(rounded_seconds),
        duration_seconds: rounded_seconds(facts.duration),
        output_tokens: request.output_tokens,
        slow_cause: facts.slow.map(|cause| cause.as_str().to_owned()),
        trace_id: facts.trace_id.map(|id| format!("{id:032x}")),
    }
}

fn tenant_label(client: Option<&Arc<ClientIdentity>>) -> Option<String> {
    client.map(|client| client.tenant_label().to_owned())
}

/// Converts a duration to seconds, rounded down to a microsecond.
fn rounded_seconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}
