//! The status of backends as the admin listener returns it.

use std::collections::BTreeMap;
use std::time::Instant;
use tokenweir_api::BackendFacts;
use tokenweir_diagnose::DrainSummary;
use tokenweir_engine::dialect::EngineKind;
use tokenweir_engine::model::ServedModel;
use tokenweir_engine::role::Role;
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::backend::{
    Backend, BackendAvailability, BackendState, Drain, Health, Readiness,
};
use tokenweir_gateway::status::{
    BackendEstimates, BackendMetricAvailability, BackendStatusSnapshot, LEAVING_STATE,
};
use tokenweir_routing::resilience::Availability;

/// Returns the status of each backend of the pool, and of each removed backend with open requests. If a backend
/// of the pool has the name of a removed one, the status includes the open requests of the removed one.
pub(super) fn backend_statuses(
    pool: &BackendPool,
    readiness: &Readiness,
    now: Instant,
) -> Vec<BackendStatusSnapshot> {
    let to_status = |availability: &BackendAvailability| {
        let mut status = backend_status(&availability.backend, now);
        status.facts.state = availability.availability.as_str().into();
        status.facts.up = availability.is_up;
        status
    };
    let mut statuses: Vec<BackendStatusSnapshot> =
        readiness.backends.iter().map(to_status).collect();
    for backend in pool.retiring_backends() {
        let mut leaving = backend_status(&backend, now);
        if let Some(current) = statuses
            .iter_mut()
            .find(|status| status.backend == leaving.backend)
        {
            current.facts.in_flight += leaving.facts.in_flight;
            current.facts.stalled += leaving.facts.stalled;
        } else {
            leaving.facts.health = LEAVING_STATE.into();
            leaving.facts.state = LEAVING_STATE.into();
            leaving.facts.up = false;
            statuses.push(leaving);
        }
    }
    statuses
}

/// Returns the status of one backend at `now`, without regard to panic mode.
pub fn backend_status(backend: &Backend, now: Instant) -> BackendStatusSnapshot {
    let state = backend.health.state();
    let engine = state.sample.map(|sample| sample.load);
    let load = engine.unwrap_or_default();
    BackendStatusSnapshot {
        backend: backend.identity.id.to_string(),
        facts: backend_facts(backend, &state, now),
        ejections: backend.health.breaker.ejections(),
        role: backend.facets.role.get().map(Role::as_str),
        stalls: backend.load.stall_count(),
        restarts: backend.load.restart_count(),
        engine,
        preemptions: load.preemptions,
        asleep: load.is_asleep(),
        dialect: load.server.map(EngineKind::as_str),
        metrics: metric_availability(&state),
        models_error: state.models_error.as_deref().map(Into::into),
        learned: learned_estimates(backend, now),
        pod: backend.identity.settings().pod.as_deref().map(Into::into),
        blocks: backend.facets.status(),
    }
}

fn backend_facts(backend: &Backend, state: &BackendState, now: Instant) -> BackendFacts {
    let health = &backend.health;
    let availability = backend.availability(now);
    let load = state.sample.map(|sample| sample.load).unwrap_or_default();
    let age = state
        .sample
        .map(|sample| now.saturating_duration_since(sample.scraped_at));
    BackendFacts {
        url: backend.identity.address.to_string(),
        health: state.health.as_str().to_owned(),
        breaker: health.breaker.state().as_str().to_owned(),
        state: availability.as_str().to_owned(),
        up: availability == Availability::Available,
        reason: unavailability_reason(state),
        drained: health.is_drained(),
        drain: health.drain().map(|drain| drain_summary(&drain, now)),
        weight: backend.weight(),
        version: state.version.as_deref().map(Into::into),
        front_end: state
            .front_end
            .map(|front_end| front_end.as_str().to_owned()),
        max_model_len: longest_contexts(state.models()),
        unserved: health
            .unserved(now)
            .into_iter()
            .map(str::to_owned)
            .collect(),
        models: state
            .models()
            .iter()
            .map(|model| model.id.to_string())
            .collect(),
        kv_usage: load.kv_usage,
        kv_capacity_tokens: load.capacity(),
        waiting: load.waiting,
        running: load.running,
        in_flight: backend.load.in_flight(),
        stalled: backend.load.stalled_streams(),
        overdue_seconds: backend.standstill_seconds(now),
        scrape_age_seconds: age.map(|age| age.as_secs_f64()),
        scrape_error: state.metrics_error.map(|error| error.as_str().to_owned()),
    }
}

/// Returns the drain of a backend in the form of the admin listener.
pub(crate) fn drain_summary(drain: &Drain, now: Instant) -> DrainSummary {
    DrainSummary {
        by: drain.initiator.to_string(),
        reason: drain.reason.as_deref().map(Into::into),
        since: humantime::format_rfc3339_seconds(drain.started).to_string(),
        age_seconds: now.saturating_duration_since(drain.began_at).as_secs_f64(),
        remaining_seconds: drain
            .ends_at
            .map(|ends_at| ends_at.saturating_duration_since(now).as_secs_f64()),
    }
}

/// Returns the estimates that the gateway has learned for a backend from its responses and scrapes, at `now`.
fn learned_estimates(backend: &Backend, now: Instant) -> BackendEstimates {
    let estimator = &backend.load.estimator;
    let learned = estimator.learned();
    let prefill = learned.prefill();
    BackendEstimates {
        freshness: estimator.certainty(now),
        prefill_tokens_per_second: 1.0 / prefill.per_token,
        prefill_base_seconds: prefill.base,
        prefill_backlog_tokens: backend.backlog_tokens(now),
        ttft_seconds: learned.ttft(),
        bytes_per_token: learned.tokens_per_byte().recip(),
        output_tokens: learned.output_tokens(),
        prefix_retention: learned.retention(),
        prefix_index_bytes: estimator.prefix_table_bytes(),
    }
}

/// Returns the context length of each base model, in tokens. Adapters, and models without a known
/// context length, are left out.
fn longest_contexts(models: &[ServedModel]) -> BTreeMap<String, u32> {
    let base_models = models.iter().filter(|model| model.parent.is_none());
    base_models
        .filter_map(|model| Some((model.id.to_string(), model.max_len?)))
        .collect()
}

/// Returns why health checks exclude a backend from routing. `None`: the backend is up, awake and
/// not paused.
fn unavailability_reason(state: &BackendState) -> Option<String> {
    match state.health {
        Health::Up => {
            let availability = state.engine_availability()?;
            Some(format!("the engine is {}", availability.as_str()))
        }
        Health::Down | Health::Unknown => state.reason.as_deref().map(Into::into),
    }
}

/// Returns the names of the engine metrics that the last scraped page of a backend has, and the names of the
/// metrics that it lacks.
fn metric_availability(state: &BackendState) -> BackendMetricAvailability {
    let mut signals = BackendMetricAvailability::default();
    for (signal, is_available) in state.metrics().each() {
        let names = if is_available {
            &mut signals.available
        } else {
            &mut signals.missing
        };
        names.push(signal.name);
    }
    signals
}
