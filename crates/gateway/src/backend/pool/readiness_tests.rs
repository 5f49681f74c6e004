//! Tests of availability, readiness and panic mode.

use super::*;
use crate::backend::pool::tests::{backend_at, pool_of, requirements};
use crate::backend::pool::{BackendPool, BackendRequirements};
use crate::backend::{BackendSettings, Drain, DrainInitiator, Health, LoadSample, PoolSettings};
use std::time::Duration;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_protocol::clock;
use tokenweir_request::error::GatewayError;
use tokenweir_routing::resilience;
use tokenweir_routing::resilience::{Availability, BreakerAction};
use tokenweir_routing::{PANIC, Policy, PolicyKind};

/// A pool of backends that are up, one backend for each model list.
fn pool_with_models(models: &[&[&str]], panic_threshold: f64, kind: PolicyKind) -> BackendPool {
    let breaker = resilience::CircuitBreakerSettings {
        slow_start: Duration::ZERO,
        ..Default::default()
    };
    let backend = |port| {
        let backend = backend_at(port);
        backend.health.breaker.set(breaker);
        backend
    };
    let backends = (8000..).map(backend).take(models.len()).collect();
    let models: Vec<_> = models.iter().copied().map(Some).collect();
    let policy = Policy {
        kind,
        ..Policy::default()
    };
    let settings = PoolSettings {
        policy,
        panic_threshold,
        ..PoolSettings::default()
    };
    pool_of(backends, &models, &settings)
}

fn pool_of_two_backends(panic_threshold: f64) -> BackendPool {
    pool_with_models(&[&["a"], &["a"]], panic_threshold, PolicyKind::default())
}

fn eject(backend: &Backend, now: Instant) {
    backend
        .health
        .apply_to_breaker(BreakerAction::Eject, &backend.identity.id, "died", now);
    assert!(backend.health.breaker.is_ejected(now));
}

/// The reason of the next routing decision.
fn routing_reason(
    pool: &BackendPool,
    model: &str,
    seed: u64,
    now: Instant,
) -> Result<&'static str, GatewayError> {
    let requirements = BackendRequirements {
        seed,
        ..requirements(Some(model))
    };
    pool.lease(requirements, &[], now)
        .map(|(_, decision)| decision.reason())
}

/// A function that brings a backend of a pool into a state.
type StateSetter = fn(&BackendPool, &Arc<Backend>);

#[test]
fn readiness_needs_an_available_backend() {
    let states: [(Availability, StateSetter); 6] = [
        (Availability::Unknown, |_, backend| {
            backend.update_state(|state| state.health = Health::Unknown);
        }),
        (Availability::Down, |_, backend| {
            backend.mark_down("refused");
        }),
        (Availability::Asleep, |_, backend| {
            let load = EngineLoad {
                awake: Some(0.0),
                ..EngineLoad::default()
            };
            backend.update_state(|state| {
                state.sample = Some(LoadSample {
                    load,
                    scraped_at: clock::now(),
                });
            });
        }),
        (Availability::Drained, |pool, backend| {
            let drain = Drain::begin(DrainInitiator::Configuration, None, None);
            pool.drain(backend.identity.id.as_str(), drain);
        }),
        (Availability::ZeroWeight, |_, backend| {
            backend.identity.replace_settings(Arc::new(BackendSettings {
                weight: 0,
                ..BackendSettings::default()
            }));
        }),
        (Availability::Ejected, |_, backend| {
            eject(backend, clock::now());
        }),
    ];
    for (availability, set_state) in states {
        let pool = pool_of_two_backends(0.0);
        let now = || clock::now();
        for (number, backend) in pool.backends().iter().enumerate() {
            assert!(
                pool.is_ready() && pool.readiness(now()).is_ready,
                "{availability:?}"
            );
            assert!(
                routing_reason(&pool, "a", 0, now()).is_ok(),
                "{availability:?}"
            );
            set_state(&pool, backend);
            let readiness = pool.readiness(now());
            assert_eq!(readiness.backends[number].availability, availability);
            assert!(!readiness.backends[number].is_up, "{availability:?}");
        }
        let readiness = pool.readiness(now());
        assert!(!pool.is_ready() && !readiness.is_ready, "{availability:?}");
        assert_eq!(
            readiness.summary(),
            format!("2 backends: 2 {}", availability.as_str())
        );
        assert_eq!(
            routing_reason(&pool, "a", 0, now()),
            Err(GatewayError::NoBackend),
            "{availability:?}"
        );
    }
    assert!(!pool_with_models(&[], 0.5, PolicyKind::default()).is_ready());
}

#[test]
fn ejected_backends_are_ready_in_panic_mode() {
    let now = clock::now();
    let pool = pool_of_two_backends(0.0);
    pool.backends()
        .iter()
        .for_each(|backend| eject(backend, now));
    let ejection = resilience::CircuitBreakerSettings::default().base_ejection_time;
    assert!(!pool.readiness(now + ejection / 2).is_ready);
    assert!(
        pool.readiness(now + ejection).is_ready,
        "the next request probes a backend"
    );
    let pool = pool_of_two_backends(0.5);
    pool.backends()
        .iter()
        .for_each(|backend| eject(backend, now));
    let readiness = pool.readiness(now);
    assert!(pool.is_ready() && readiness.is_ready && readiness.is_panic);
    assert_eq!(readiness.summary(), "2 backends: 2 ejected");
    assert_eq!(routing_reason(&pool, "a", 0, now), Ok(PANIC));
}

#[test]
fn overload_is_no_panic_mode() {
    let (pool, now) = (pool_of_two_backends(0.5), clock::now());
    pool.backends()
        .iter()
        .for_each(|backend| backend.health.breaker.on_overload(None, now));
    let readiness = pool.readiness(now);
    assert!(pool.is_ready() && readiness.is_ready && !readiness.is_panic);
    assert_eq!(readiness.summary(), "2 backends: 2 available");
    assert!(routing_reason(&pool, "a", 0, now).is_ok_and(|reason| reason != PANIC));
}

#[test]
fn panic_mode_applies_to_single_models() {
    let models: [&[&str]; 6] = [&["a"], &["a"], &["b"], &["b"], &["b"], &["b"]];
    let (pool, now) = (
        pool_with_models(&models, 0.5, PolicyKind::default()),
        clock::now(),
    );
    let backends = pool.backends();
    backends
        .iter()
        .take(3)
        .for_each(|backend| eject(backend, now));
    let readiness = pool.readiness(now);
    let up: Vec<bool> = readiness
        .backends
        .iter()
        .map(|backend| backend.is_up)
        .collect();
    assert_eq!(up, [true, true, false, true, true, true]);
    assert!(readiness.is_panic);
    assert_eq!(routing_reason(&pool, "a", 0, now), Ok(PANIC));
    assert!(routing_reason(&pool, "b", 0, now).is_ok_and(|reason| reason != PANIC));
}

#[test]
fn a_second_attempt_is_no_panic_mode() {
    let (pool, now) = (pool_of_two_backends(0.5), clock::now());
    let backends = pool.backends();
    eject(&backends[1], now);
    let (_, second) = pool
        .lease(requirements(Some("a")), &[backends[0].clone()], now)
        .unwrap();
    assert_eq!(second.reason(), "only_candidate");
    assert!(!pool.readiness(now).is_panic);
}

#[test]
fn an_unlucky_sample_causes_no_panic_mode() {
    let models: &[&str] = &["a"];
    let (pool, now) = (
        pool_with_models(&[models; 200], 0.5, PolicyKind::Random),
        clock::now(),
    );
    pool.backends()
        .iter()
        .step_by(5)
        .for_each(|backend| eject(backend, now));
    pool.backends()
        .iter()
        .skip(1)
        .step_by(5)
        .for_each(|backend| eject(backend, now));
    for seed in 0..2_000 {
        let reason = routing_reason(&pool, "a", tokenweir_routing::mix(seed), now);
        assert_eq!(reason, Ok("random"), "{seed}");
    }
}

#[test]
fn an_unready_period_is_logged_once() {
    let (pool, now) = (pool_of_two_backends(0.0), clock::now());
    let (snapshot, log) = (pool.snapshot(), ReadinessLog::default());
    let at = |seconds| now + Duration::from_secs(seconds);
    let record = |seconds| snapshot.readiness(now).log_change(&log, at(seconds));
    let set_health = |health| {
        let set = |backend: &Arc<Backend>| backend.update_state(|state| state.health = health);
        pool.backends().iter().for_each(set);
    };
    set_health(Health::Unknown);
    assert_eq!(
        record(0),
        None,
        "the first health checks have not completed"
    );
    set_health(Health::Down);
    assert_eq!((record(1), record(2)), (Some(true), None));
    assert!(log.is_unready.get());
    set_health(Health::Up);
    assert_eq!((record(3), record(7)), (None, None));
    set_health(Health::Down);
    assert_eq!(record(8), None, "the period goes on");
    set_health(Health::Up);
    assert_eq!(
        (record(9), record(14), record(15)),
        (None, Some(false), None)
    );
    set_health(Health::Unknown);
    assert_eq!(record(16), Some(true), "backends were available before");
}

#[test]
fn the_first_unserved_request_logs_at_once() {
    let (pool, now) = (pool_of_two_backends(0.0), clock::now());
    assert!(routing_reason(&pool, "a", 0, now).is_ok());
    assert!(!pool.snapshot().readiness_log.is_unready.get());
    pool.backends()
        .iter()
        .for_each(|backend| backend.mark_down("gone"));
    assert_eq!(
        routing_reason(&pool, "a", 0, now),
        Err(GatewayError::NoBackend)
    );
    assert!(pool.snapshot().readiness_log.is_unready.get());
}
