//! What keeps requests from a backend, and when ejections are ignored.

use super::super::pool::{Need, Pool};
use super::super::{Model, Sample};
use super::*;
use serde_json::json;
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_core::dialect::Load;
use tokenweir_core::error::Error;
use tokenweir_core::resilience;
use tokenweir_core::routing::{PANIC, Policy, PolicyKind, Prompt};

/// A fleet of backends that are up, each with its models, and the threshold of panic mode.
fn fleet(models: &[&[&str]], panic_threshold: f64, kind: PolicyKind) -> Pool {
    let backend = |port: usize| {
        let address = Address::parse(&format!("http://127.0.0.1:{}", 8000 + port)).unwrap();
        let settings = resilience::Settings { slow_start: Duration::ZERO, ..Default::default() };
        Backend::new(address.default_id(), address, None).with_health(settings)
    };
    let policy = Policy { kind, ..Policy::default() };
    let pool = Pool::new((0..models.len()).map(backend).collect(), &[], policy);
    let pool = pool.with_panic_threshold(panic_threshold);
    for (backend, ids) in pool.backends().iter().zip(models) {
        backend.update(|state| state.health = Health::Up);
        let model = |id: &&str| Model::of(&json!({ "id": id })).unwrap();
        backend.serves(&ids.iter().map(model).collect());
    }
    pool
}

fn two(panic_threshold: f64) -> Pool {
    fleet(&[&["a"], &["a"]], panic_threshold, PolicyKind::default())
}

fn eject(backend: &Backend, now: Instant) {
    assert!(backend.breaker.on_death(now));
}

/// The reason of the next decision.
fn reason(pool: &Pool, model: &str, seed: u64, now: Instant) -> Result<&'static str, Error> {
    reason_after(pool, model, &[], seed, now)
}

/// The reason of the next decision for a request that these had before.
fn reason_after(
    pool: &Pool,
    model: &str,
    tried: &[Arc<Backend>],
    seed: u64,
    now: Instant,
) -> Result<&'static str, Error> {
    let prompt = Arc::new(Prompt::default());
    let need = Need { model: Some(model), prompt: &prompt, is_stream: true, session: None, seed };
    pool.lease(need, tried, now).map(|(_, decision)| decision.reason())
}

/// Puts a backend into a state.
type Put = fn(&Pool, &Arc<Backend>);

#[test]
fn a_fleet_is_ready_only_while_a_backend_may_be_sent_requests() {
    let states: [(Availability, Put); 6] = [
        (Availability::Unknown, |_, backend| {
            backend.update(|state| state.health = Health::Unknown);
        }),
        (Availability::Down, |_, backend| backend.suspect("refused")),
        (Availability::Asleep, |_, backend| {
            let load = Load { awake: Some(0.0), ..Load::default() };
            backend.update(|state| state.sample = Some(Sample { load, at: clock::now() }));
        }),
        (Availability::Drained, |pool, backend| {
            pool.drain(backend.id.as_str(), true);
        }),
        (Availability::ZeroWeight, |_, backend| {
            backend.weight.store(0, Ordering::Relaxed);
        }),
        (Availability::Ejected, |_, backend| eject(backend, clock::now())),
    ];
    for (availability, put) in states {
        let pool = two(0.0);
        let now = || clock::now();
        for (number, backend) in pool.backends().iter().enumerate() {
            assert!(pool.is_ready() && pool.readiness(now()).is_ready(), "{availability:?}");
            assert!(reason(&pool, "a", 0, now()).is_ok(), "{availability:?}");
            put(&pool, backend);
            let readiness = pool.readiness(now());
            assert_eq!(readiness.backends[number].availability, availability);
            assert!(!readiness.backends[number].is_up, "{availability:?}");
        }
        let readiness = pool.readiness(now());
        assert!(!pool.is_ready() && !readiness.is_ready(), "{availability:?}");
        assert_eq!(readiness.summary(), format!("2 backends: 2 {}", availability.as_str()));
        assert_eq!(reason(&pool, "a", 0, now()), Err(Error::NoBackend), "{availability:?}");
    }
    assert!(!fleet(&[], 0.5, PolicyKind::default()).is_ready());
}

#[test]
fn an_ejected_fleet_is_ready_again_when_its_time_is_over_and_at_once_in_panic_mode() {
    let now = clock::now();
    let pool = two(0.0);
    pool.backends().iter().for_each(|backend| eject(backend, now));
    let ejection = resilience::Settings::default().ejection;
    assert!(!pool.readiness(now + ejection / 2).is_ready());
    assert!(pool.readiness(now + ejection).is_ready(), "the next request tries it");
    let pool = two(0.5);
    pool.backends().iter().for_each(|backend| eject(backend, now));
    let readiness = pool.readiness(now);
    assert!(pool.is_ready() && readiness.is_ready() && readiness.is_panic);
    assert_eq!(readiness.summary(), "2 backends: 2 ejected");
    assert_eq!(reason(&pool, "a", 0, now), Ok(PANIC));
}

#[test]
fn a_fleet_that_is_full_is_ready_and_not_in_panic() {
    let (pool, now) = (two(0.5), clock::now());
    pool.backends().iter().for_each(|backend| backend.breaker.on_full(now));
    let readiness = pool.readiness(now);
    assert!(pool.is_ready() && readiness.is_ready() && !readiness.is_panic);
    assert_eq!(readiness.summary(), "2 backends: 2 available");
    assert!(reason(&pool, "a", 0, now).is_ok_and(|reason| reason != PANIC));
}

#[test]
fn panic_mode_is_of_the_backends_that_serve_a_model() {
    let models: [&[&str]; 6] = [&["a"], &["a"], &["b"], &["b"], &["b"], &["b"]];
    let (pool, now) = (fleet(&models, 0.5, PolicyKind::default()), clock::now());
    let backends = pool.backends();
    backends.iter().take(3).for_each(|backend| eject(backend, now));
    let readiness = pool.readiness(now);
    let up: Vec<bool> = readiness.backends.iter().map(|it| it.is_up).collect();
    assert_eq!(up, [true, true, false, true, true, true]);
    assert!(readiness.is_panic);
    assert_eq!(reason(&pool, "a", 0, now), Ok(PANIC));
    assert!(reason(&pool, "b", 0, now).is_ok_and(|reason| reason != PANIC));
}

#[test]
fn a_second_attempt_at_the_only_other_backend_is_no_panic_although_that_is_ejected() {
    let (pool, now) = (two(0.5), clock::now());
    let backends = pool.backends();
    eject(&backends[1], now);
    let tried = [backends[0].clone()];
    assert_eq!(reason_after(&pool, "a", &tried, 0, now), Ok("only_candidate"));
    assert!(!pool.readiness(now).is_panic);
}

#[test]
fn a_short_list_that_has_many_ejected_backends_by_chance_is_no_reason_to_panic() {
    let models: &[&str] = &["a"];
    let (pool, now) = (fleet(&[models; 200], 0.5, PolicyKind::Random), clock::now());
    pool.backends().iter().step_by(5).for_each(|backend| eject(backend, now));
    pool.backends().iter().skip(1).step_by(5).for_each(|backend| eject(backend, now));
    for seed in 0..2_000 {
        let reason = reason(&pool, "a", tokenweir_core::routing::mix(seed), now);
        assert_eq!(reason, Ok("random"), "{seed}");
    }
}

#[test]
fn the_beginning_and_the_end_of_panic_mode_are_logged_once_while_it_comes_and_goes() {
    let (log, now) = (PanicLog::default(), clock::now());
    assert!(!log.end(now), "it has not begun");
    assert!(log.begin(2, 2, now));
    for second in 1..30 {
        let later = now + Duration::from_secs(second);
        assert!(!log.end(later), "it was on a second ago");
        assert!(!log.begin(2, 2, later));
    }
    let last = now + Duration::from_secs(29);
    assert!(!log.end(last + CALM / 2));
    assert!(log.end(last + CALM));
    assert!(!log.end(last + 2 * CALM));
    assert!(log.begin(2, 2, last + 3 * CALM), "another one");
}
