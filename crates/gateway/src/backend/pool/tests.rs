//! Tests of leases and of updates of the pool.

use super::*;
use crate::backend::routes::ModelConfig;
use crate::backend::routes::tests::model_list;
use crate::backend::{BackendSettings, Health, PoolSettings};
use proptest::prelude::*;
use std::sync::LazyLock;
use std::time::Duration;
use tokenweir_engine::address::{BackendAddress, BackendId, MetricsUrl};
use tokenweir_protocol::clock;
use tokenweir_routing::{LocalLoad, PolicyKind, PromptFingerprint};

/// A pool of backends that are up, one for each model list. `None`: no list yet.
pub(super) fn pool(models: &[Option<&[&str]>]) -> BackendPool {
    let backends = (8000..).map(backend_at).take(models.len()).collect();
    pool_of(backends, models, &PoolSettings::default())
}

/// A pool of these backends, which are up, with their model lists.
pub(super) fn pool_of(
    backends: Vec<Backend>,
    models: &[Option<&[&str]>],
    settings: &PoolSettings,
) -> BackendPool {
    let pool = BackendPool::with_settings(backends, settings);
    for (backend, models) in pool.backends().iter().zip(models) {
        backend.update_state(|state| state.health = Health::Up);
        if let Some(ids) = models {
            pool.set_models(backend, &model_list(ids));
        }
    }
    pool
}

fn drain(duration: Option<Duration>) -> Drain {
    Drain::begin(DrainInitiator::Configuration, None, duration)
}

static PROMPT: LazyLock<Arc<PromptFingerprint>> = LazyLock::new(|| {
    Arc::new(PromptFingerprint {
        bytes: 40,
        ..PromptFingerprint::default()
    })
});

pub(super) fn requirements(model: Option<&str>) -> BackendRequirements<'_> {
    BackendRequirements {
        model,
        is_stream: true,
        ..BackendRequirements::none(&PROMPT, 0)
    }
}

pub(super) fn lease(pool: &BackendPool, model: Option<&str>) -> Result<Lease, GatewayError> {
    pool.lease(requirements(model), &[], clock::now())
        .map(|(lease, _)| lease)
}

#[test]
fn unknown_models_need_complete_lists() {
    let all_known = pool(&[Some(&["a"]), Some(&["b"])]);
    let error = lease(&all_known, Some("c")).unwrap_err();
    assert_eq!(
        error,
        GatewayError::UnknownModel {
            model: "c".into(),
            known: "`a`, `b`".into()
        }
    );
    let one_unlisted = pool(&[Some(&["a"]), None]);
    assert!(lease(&one_unlisted, Some("c")).is_ok());
    one_unlisted.backends()[1].mark_down("gone");
    assert_eq!(
        lease(&one_unlisted, Some("c")).unwrap_err(),
        GatewayError::NoBackend
    );
}

#[test]
fn down_and_tried_backends_are_not_picked() {
    let pool = pool(&[None, None]);
    let (first, _) = pool.lease(requirements(None), &[], clock::now()).unwrap();
    let (second, _) = pool
        .lease(requirements(None), &[first.backend().clone()], clock::now())
        .unwrap();
    assert_ne!(first.backend().identity.id, second.backend().identity.id);
    let tried = [first.backend().clone(), second.backend().clone()];
    assert_eq!(
        pool.lease(requirements(None), &tried, clock::now())
            .unwrap_err(),
        GatewayError::NoBackend
    );
    pool.backends()
        .iter()
        .for_each(|backend| backend.mark_down("refused"));
    assert!(!pool.is_ready());
    assert_eq!(lease(&pool, None).unwrap_err(), GatewayError::NoBackend);
}

pub(super) fn lease_offered(
    pool: &BackendPool,
    thresholds: &SaturationThresholds,
    requirements: BackendRequirements<'_>,
    now: Instant,
) -> Result<Option<(Lease, Arc<RoutingDecision>)>, GatewayError> {
    let offer = pool.offer(Some(thresholds), requirements, now)?;
    Ok(offer.map(|offer| offer.accept(requirements, now)))
}

#[test]
fn backends_at_their_limit_are_not_leased() {
    let thresholds = SaturationThresholds {
        waiting: None,
        kv_usage: None,
        in_flight: Some(1),
        ..SaturationThresholds::default()
    };
    let pool = pool(&[None, None]);
    let lease = |model| lease_offered(&pool, &thresholds, requirements(model), clock::now());
    let (first, _) = lease(None).unwrap().unwrap();
    let (second, _) = lease(None).unwrap().unwrap();
    assert_ne!(first.backend().identity.id, second.backend().identity.id);
    assert!(
        lease(None).unwrap().is_none(),
        "all backends are at their limit"
    );
    drop(second);
    assert!(lease(None).unwrap().is_some());
    pool.backends()
        .iter()
        .for_each(|backend| backend.mark_down("gone"));
    assert_eq!(lease(None).unwrap_err(), GatewayError::NoBackend);
}

/// A prompt of 56,000 bytes.
pub(super) fn long_prompt(text: &str) -> Arc<PromptFingerprint> {
    Arc::new(PromptFingerprint::new(
        1,
        std::iter::once(text.repeat(56_000 / text.len()).as_bytes()),
    ))
}

/// Leases a backend for a request with this prompt. Returns the backend and the decision.
pub(super) fn pick(
    pool: &BackendPool,
    prompt: &Arc<PromptFingerprint>,
    seed: u64,
) -> (BackendId, Arc<RoutingDecision>) {
    let requirements = BackendRequirements {
        prompt,
        seed,
        ..requirements(None)
    };
    let (lease, decision) = pool.lease(requirements, &[], clock::now()).unwrap();
    (lease.backend().identity.id.clone(), decision)
}

#[test]
fn a_full_backend_precedes_a_stuck_one() {
    let thresholds = SaturationThresholds {
        waiting: None,
        kv_usage: None,
        in_flight: Some(2),
        ..SaturationThresholds::default()
    };
    let pool = pool(&[None, None]);
    let start = clock::now();
    let later = start + Duration::from_secs(5);
    let lease_at = |at| {
        let leased = lease_offered(&pool, &thresholds, requirements(None), at);
        leased.unwrap().map(|(lease, _)| lease)
    };
    let stuck = lease_at(start).unwrap();
    let others = [lease_at(later).unwrap(), lease_at(later).unwrap()];
    assert!(
        others
            .iter()
            .all(|other| other.backend().identity.id != stuck.backend().identity.id)
    );
    assert!(
        lease_at(later).is_none(),
        "one is full, the other one is stuck"
    );
    stuck.backend_feedback().on_first_output(later);
    assert_eq!(
        lease_at(later).unwrap().backend().identity.id,
        stuck.backend().identity.id
    );
}

#[test]
fn a_large_pool_has_prefix_affinity() {
    let pool = pool(&[None; 200]);
    let prompt = long_prompt("a long prompt ");
    let pick = |seed| pick(&pool, &prompt, seed);
    let (first, decision) = pick(1);
    assert_eq!(decision.candidate_count(), 4, "picked from a sample");
    for seed in 2..50 {
        let (id, decision) = pick(seed);
        assert_eq!((id, decision.reason()), (first.clone(), "cached_prefix"));
    }
    let backends = pool.backends();
    for backend in backends.iter().skip(1).step_by(2) {
        assert_eq!(
            pool.drain(backend.identity.id.as_str(), drain(None)),
            Some(true)
        );
    }
    for seed in 1..50 {
        let (lease, decision) = pool
            .lease(
                BackendRequirements {
                    seed,
                    ..requirements(None)
                },
                &[],
                clock::now(),
            )
            .unwrap();
        assert_eq!(
            (lease.backend().weight(), decision.candidate_count()),
            (1, 4),
            "drained backends are not sampled"
        );
    }
    for backend in backends.iter() {
        pool.undrain(backend.identity.id.as_str(), DrainInitiator::Configuration);
    }
    let (last, others) = backends.split_last().unwrap();
    for backend in others {
        backend.mark_down("gone");
    }
    assert_eq!(pick(50).0, last.identity.id);
}

#[tokio::test]
async fn only_waiting_requests_are_notified() {
    let pool = pool(&[None]);
    let is_notified = || {
        futures_util::FutureExt::now_or_never(pool.capacity_notifier.wait_capacity_freed())
            .is_some()
    };
    drop(lease(&pool, None).unwrap());
    assert!(!is_notified());
    pool.capacity_notifier.set_waiting_requests(1);
    assert!(!is_notified());
    drop(lease(&pool, None).unwrap());
    assert!(is_notified());
    pool.backends()[0].mark_down("gone");
    assert!(
        is_notified() && !is_notified(),
        "one notification per change"
    );
    pool.first_output(&tokenweir_request::record::fixtures::streamed());
    assert!(is_notified(), "a prefill has ended");
    let update = pool.plan_update(vec![backend_at(8000), backend_at(8001)]);
    pool.apply_update(update, &PoolSettings::default());
    assert!(is_notified(), "an update");
}

// === updates ===

pub(super) fn backend_at(port: usize) -> Backend {
    let address = BackendAddress::parse(&format!("http://127.0.0.1:{port}")).unwrap();
    Backend::new(address.default_id(), address, None)
}

fn set_backends(pool: &BackendPool, backends: Vec<Backend>) {
    pool.apply_update(pool.plan_update(backends), &PoolSettings::default());
    pool.backends()
        .iter()
        .for_each(|backend| backend.update_state(|state| state.health = Health::Up));
}

fn ports(pool: &BackendPool) -> Vec<u16> {
    pool.backends()
        .iter()
        .map(|backend| backend.identity.address.host_and_port().1)
        .collect()
}

#[test]
fn an_update_keeps_the_state_of_backends() {
    let pool = pool(&[Some(&["a"]), Some(&["b"])]);
    let before = pool.backends();
    let lease = lease(&pool, Some("a")).unwrap();
    assert!(before[0].load.estimator.local_load().backlog > 0);
    let settings = BackendSettings {
        weight: 7,
        ..Default::default()
    };
    let changed = backend_at(8000).with_settings(settings);
    changed.load.set_horizon(Duration::from_secs(9));
    set_backends(&pool, vec![backend_at(8001), changed]);
    let after = pool.backends();
    assert!(Arc::ptr_eq(&before[0], &after[0]) && Arc::ptr_eq(&before[1], &after[1]));
    assert_eq!((after[0].weight(), after[0].load.in_flight()), (7, 1));
    assert_eq!(after[0].load.estimator.horizon(), Duration::from_secs(9));
    assert_eq!(
        pool.routes().lookup(Some("a")).backends[..],
        [0],
        "its models stay known"
    );
    drop(lease);
    assert_eq!(after[0].load.estimator.local_load(), LocalLoad::default());
}

#[test]
fn a_second_drain_replaces_the_duration() {
    let pool = pool(&[None, None]);
    let (backend, now) = (pool.backends()[0].clone(), clock::now());
    let name = backend.identity.id.as_str();
    assert_eq!(
        pool.drain(name, drain(Some(Duration::from_mins(10)))),
        Some(true)
    );
    let first = backend.health.drain().unwrap();
    assert_eq!(
        pool.drain(name, drain(Some(Duration::from_mins(30)))),
        Some(false)
    );
    let second = backend.health.drain().unwrap();
    assert_eq!(
        (second.began_at, second.started),
        (first.began_at, first.started)
    );
    pool.end_expired_drains(now + Duration::from_mins(20));
    assert!(backend.health.is_drained(), "the second duration counts");
    pool.end_expired_drains(now + Duration::from_mins(31));
    assert!(!backend.health.is_drained() && backend.health.drain().is_none());
    assert_eq!(pool.undrain(name, DrainInitiator::Expiry), Some(false));
    pool.drain(name, drain(None));
    pool.end_expired_drains(now + Duration::from_hours(9_000));
    assert!(backend.health.is_drained(), "it has no duration");
    assert_eq!(pool.drain("unknown", drain(None)), None);
}

#[test]
fn a_configured_drain_follows_its_setting() {
    let pool = pool(&[]);
    let set = |is_drained| {
        let settings = BackendSettings {
            is_drained,
            ..Default::default()
        };
        set_backends(&pool, vec![backend_at(8000).with_settings(settings)]);
        pool.backends()[0].health.is_drained()
    };
    assert!(set(true), "at the start");
    let name = pool.backends()[0].identity.id.clone();
    pool.undrain(name.as_str(), DrainInitiator::Configuration);
    assert!(!set(true), "a reload without a change does not repeat it");
    assert!(!set(false) && set(true), "a change is applied");
    assert!(!set(false));
    let by = DrainInitiator::Operator {
        peer: None,
        has_token: false,
    };
    pool.drain(name.as_str(), Drain::begin(by, None, None));
    assert!(
        set(true) && !set(false),
        "the last drain was that of the configuration"
    );
    pool.drain(name.as_str(), Drain::begin(by, None, None));
    assert!(set(false), "a reload does not end the drain of an operator");
    let names = [by, DrainInitiator::Configuration].map(|by| by.to_string());
    assert_eq!(names, ["an operator", "the configuration"]);
}

#[test]
fn another_name_or_key_makes_a_new_backend() {
    let same = backend_at(8000);
    let (id, address) = (&same.identity.id, &same.identity.address);
    let mut other_metrics = backend_at(8000);
    other_metrics.identity.metrics_url = MetricsUrl::parse("http://a:9").ok();
    for other in [
        Backend::new(BackendId::new("named"), address.clone(), None),
        Backend::new(id.clone(), backend_at(8001).identity.address, None),
        Backend::new(
            id.clone(),
            address.clone(),
            Some("Bearer a".parse().unwrap()),
        ),
        other_metrics,
    ] {
        let pool = pool(&[None]);
        let before = pool.backends();
        set_backends(&pool, vec![other]);
        assert!(!Arc::ptr_eq(&before[0], &pool.backends()[0]));
    }
}

#[test]
fn a_removed_backend_retires_after_its_last_request() {
    let pool = pool(&[None, None]);
    let leases = [lease(&pool, None).unwrap(), lease(&pool, None).unwrap()];
    set_backends(&pool, vec![backend_at(8001), backend_at(8002)]);
    for _ in 0..10 {
        let port = lease(&pool, None)
            .unwrap()
            .backend()
            .identity
            .address
            .host_and_port()
            .1;
        assert_ne!(port, 8000);
    }
    let retiring = || {
        pool.retiring_backends()
            .iter()
            .map(|backend| backend.load.in_flight())
            .collect::<Vec<_>>()
    };
    assert_eq!(retiring(), [1]);
    drop(leases);
    assert_eq!(retiring(), [0; 0]);
    assert_eq!(lease(&pool, None).unwrap().backend().load.in_flight(), 1);
}

#[test]
fn an_update_changes_models_and_policy() {
    let pool = pool(&[Some(&["a"]), Some(&["a"])]);
    let model = |backends: &[&str]| ModelConfig {
        name: "gpt".into(),
        served_as: Some("a".into()),
        backends: Some(backends.iter().map(|name| (*name).to_owned()).collect()),
        ..ModelConfig::default()
    };
    let policy = Policy {
        kind: PolicyKind::P2c,
        ..Policy::default()
    };
    let models = vec![model(&["127.0.0.1:8001"])];
    let settings = PoolSettings {
        models,
        policy,
        ..PoolSettings::default()
    };
    pool.apply_update(
        pool.plan_update(vec![backend_at(8001), backend_at(8002)]),
        &settings,
    );
    assert_eq!(ports(&pool), [8002, 8001]);
    pool.set_models(&pool.backends()[0], &model_list(&["a"]));
    assert_eq!(
        pool.routes().lookup(Some("gpt")).backends[..],
        [1],
        "only 8001 may serve it"
    );
    assert_eq!(pool.policy().kind, PolicyKind::P2c);
    set_backends(&pool, vec![backend_at(8001)]);
    assert_eq!(
        pool.routes().lookup(Some("gpt")).backends[..],
        [0; 0],
        "the alias is removed"
    );
}

#[test]
fn affinity_survives_changes_of_other_backends() {
    let pool = pool(&[None; 100]);
    let prompt = long_prompt("a long prompt ");
    let pick = |seed| pick(&pool, &prompt, seed).0;
    let first = pick(1);
    let is_kept =
        |port: &usize| port.is_multiple_of(2) || first.as_str().ends_with(&port.to_string());
    set_backends(
        &pool,
        (8000..8100)
            .filter(is_kept)
            .chain(9000..9060)
            .map(backend_at)
            .collect(),
    );
    for seed in 2..50 {
        assert_eq!(pick(seed), first);
    }
}

proptest! {
    #[test]
    fn retained_backends_keep_their_positions(
        lists in proptest::collection::vec(
            proptest::collection::btree_set(0..12_usize, 0..9), 1..6),
    ) {
        let pool = pool(&[]);
        for wanted in lists {
            let before = pool.backends();
            set_backends(&pool, wanted.iter().map(|number| backend_at(8000 + number)).collect());
            let (after, mut ports) = (pool.backends(), ports(&pool));
            for (index, backend) in before.iter().enumerate().take(after.len()) {
                let port = usize::from(backend.identity.address.host_and_port().1);
                prop_assert!(
                    !wanted.contains(&(port - 8000)) || Arc::ptr_eq(backend, &after[index])
                );
            }
            ports.sort_unstable();
            let wanted: Vec<u16> = wanted.iter().map(|number| 8000 + *number as u16).collect();
            prop_assert_eq!(ports, wanted);
        }
    }
}
