//! Tests of the offers of the pool for requests.

use super::tests::{backend_at, lease, lease_offered, long_prompt, pool, requirements};
use super::*;
use crate::backend::facets::{BackendFacet, PoolFacet, PoolFacets, RequestPart, Suitability};
use crate::backend::routes::ModelConfig;
use crate::backend::state::DownCause;
use crate::backend::{Health, PoolSettings};
use tokenweir_engine::model::ModelList;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::openai::Usage;
use tokenweir_routing::PromptFingerprint;

#[test]
fn lost_tokens_are_cached_at_full_backends() {
    let thresholds = SaturationThresholds {
        waiting: None,
        kv_usage: None,
        in_flight: Some(1),
        ..SaturationThresholds::default()
    };
    let (pool, known, new) = (
        pool(&[None, None]),
        long_prompt("known "),
        long_prompt("new "),
    );
    let lost_tokens = |prompt| {
        let requirements = BackendRequirements {
            prompt,
            ..requirements(None)
        };
        pool.offer(Some(&thresholds), requirements, clock::now())
            .unwrap()
            .unwrap()
            .lost_tokens()
    };
    assert!(lost_tokens(&known) <= 0.0);
    let requirements = BackendRequirements {
        prompt: &known,
        ..requirements(None)
    };
    let _lease = lease_offered(&pool, &thresholds, requirements, clock::now()).unwrap();
    assert!(lost_tokens(&known) > 10_000.0, "{}", lost_tokens(&known));
    assert!(lost_tokens(&new) <= 0.0);
}

#[test]
fn a_request_stays_with_its_prefix() {
    use tokenweir_routing::LoadReport;
    let (pool, known, now) = (pool(&[None, None]), long_prompt("known "), clock::now());
    let requirements = BackendRequirements {
        prompt: &known,
        ..requirements(None)
    };
    let (lease, _) = pool.lease(requirements, &[], now).unwrap();
    let holder = lease.backend().clone();
    drop(lease);
    let report = |backend: &Backend, waiting: f64| {
        let report = LoadReport {
            waiting,
            running: 8.0,
            ..LoadReport::default()
        };
        backend
            .load
            .estimator
            .on_report(&report, &backend.load.estimator.local_load(), now);
    };
    let thresholds = SaturationThresholds::default();
    let lease = || lease_offered(&pool, &thresholds, requirements, now).unwrap();
    for backend in pool.backends().iter() {
        report(
            backend,
            if Arc::ptr_eq(backend, &holder) {
                16.0
            } else {
                0.0
            },
        );
    }
    let (leased, _) = lease().unwrap();
    assert!(Arc::ptr_eq(leased.backend(), &holder));
    pool.backends()
        .iter()
        .for_each(|backend| report(backend, 17.0));
    assert!(lease().is_none(), "all are full");
}

#[test]
fn unusable_numbers_fail_no_request() {
    use tokenweir_routing::{LoadReport, TokenGapSum};
    for number in [f64::NAN, f64::INFINITY, -f64::INFINITY, 1e308] {
        let pool = pool(&[None, None]);
        let (bad, now) = (pool.backends()[0].clone(), clock::now());
        let report = LoadReport {
            kv_usage: Some(number),
            waiting: number,
            running: number,
            capacity: Some(u64::MAX),
            tokens: Some(number),
            token_gaps: Some(TokenGapSum {
                seconds: number,
                count: number,
            }),
        };
        let estimator = &bad.load.estimator;
        estimator.on_report(&report, &estimator.local_load(), now);
        for _ in 0..10 {
            lease(&pool, None).unwrap();
        }
        let sound = LoadReport {
            kv_usage: Some(0.1),
            ..LoadReport::default()
        };
        for backend in pool.backends().iter() {
            let estimator = &backend.load.estimator;
            estimator.on_report(&sound, &estimator.local_load(), now);
        }
        let leases: Vec<_> = (0..10).map(|_| lease(&pool, None).unwrap()).collect();
        assert!(
            leases
                .iter()
                .any(|lease| Arc::ptr_eq(lease.backend(), &bad)),
            "{number}"
        );
    }
}

#[test]
fn a_stuck_backend_is_the_last_resort() {
    let pool = pool(&[Some(&["a"]), Some(&["a", "b"])]);
    let suspected = pool.backends()[1].clone();
    suspected.update_state(|state| state.set_down(DownCause::Stuck, &"no progress".into()));
    for _ in 0..4 {
        assert!(!Arc::ptr_eq(
            lease(&pool, Some("a")).unwrap().backend(),
            &suspected
        ));
        assert!(Arc::ptr_eq(
            lease(&pool, Some("b")).unwrap().backend(),
            &suspected
        ));
    }
    assert!(pool.readiness(clock::now()).backends[1].is_up);
    suspected.mark_down("refused");
    assert!(lease(&pool, Some("b")).is_err());
    assert!(!pool.readiness(clock::now()).backends[1].is_up);
    suspected.mark_up();
    assert!(lease(&pool, Some("b")).is_ok());
}

#[test]
fn listed_and_configured_models_are_expected() {
    let is_expected = |pool: &BackendPool, model: &str| pool.routes().is_expected(Some(model));
    let unlisted = pool(&[None]);
    assert!(is_expected(&unlisted, "any"), "the backend may serve it");
    let listed = pool(&[Some(&["a"]), Some(&["b"])]);
    assert!(is_expected(&listed, "a") && !is_expected(&listed, "any"));
    assert!(listed.routes().is_expected(None));
    let [first, second] = [0, 1].map(|position| listed.backends()[position].clone());
    // A backend that is up no longer lists the model, so the model was removed on purpose.
    listed.set_models(&second, &Arc::from([]));
    assert!(!is_expected(&listed, "b"));
    // Both backends leave the pool. The model of the first one stays expected.
    let (name, served_as) = ("alias".to_owned(), Some("a2".to_owned()));
    let models = vec![ModelConfig {
        name,
        served_as,
        ..ModelConfig::default()
    }];
    let settings = PoolSettings {
        models,
        ..PoolSettings::default()
    };
    listed.apply_update(listed.plan_update(Vec::new()), &settings);
    assert_eq!(listed.backends().len(), 0);
    assert!(is_expected(&listed, "a") && !is_expected(&listed, "b"));
    assert!(
        is_expected(&listed, "alias") && is_expected(&listed, "a2"),
        "configured"
    );
    assert!(!is_expected(&listed, "any"));
    drop(first);
}

#[test]
fn the_token_limit_bounds_expected_output() {
    let pool = pool(&[None]);
    let tokens = |max_tokens, choices| {
        let requirements = BackendRequirements {
            max_tokens,
            choices,
            ..requirements(None)
        };
        let work = pool
            .expected_work(requirements, clock::now())
            .unwrap()
            .tokens;
        let (_lease, _) = pool.lease(requirements, &[], clock::now()).unwrap();
        (work, pool.backends()[0].load.estimator.local_load().tokens)
    };
    assert_eq!(tokens(Some(3), 1), (10 + 3, 10 + 3), "prompt and output");
    assert_eq!(tokens(Some(3), 2), (10 + 6, 10 + 6), "of all choices");
    let unbounded = tokens(None, 1);
    assert!(unbounded.0 > 100 && unbounded.1 == unbounded.0);
    assert_eq!(tokens(Some(0), 1), unbounded, "no limit");
}

/// An option that wakes sleeping backends.
#[derive(Debug, Default)]
struct Waking(AtomicFlag);

impl PoolFacet for Waking {
    fn can_activate(&self, availability: Availability) -> bool {
        availability == Availability::Asleep
    }
}

impl BackendFacet for Waking {
    fn request_activation(&self) {
        self.0.set(true);
    }

    fn is_activation_requested(&self) -> bool {
        self.0.get()
    }
}

/// An option that avoids its backend for a model while it is set.
#[derive(Debug)]
struct Avoiding(Arc<AtomicFlag>);

impl BackendFacet for Avoiding {
    fn judges_requests(&self) -> bool {
        true
    }

    fn suitability(&self, _: RequestPart, model: Option<&str>) -> Suitability {
        if self.0.get() && model == Some("a") {
            Suitability::LastChoice("an option avoids it")
        } else {
            Suitability::Suitable
        }
    }
}

#[test]
fn an_option_avoids_backends_for_a_model() {
    let is_avoided = Arc::new(AtomicFlag::default());
    let mut backends: Vec<Backend> = (8000..).map(backend_at).take(2).collect();
    let facet = Box::new(Avoiding(is_avoided.clone()));
    backends[0].facets.options.push(facet);
    let pool = BackendPool::with_facets(backends, &PoolSettings::default(), PoolFacets::default());
    for backend in pool.backends().iter() {
        backend.update_state(|state| state.health = Health::Up);
        let list = br#"{"data":[{"id":"a"},{"id":"b"}]}"#;
        pool.set_models(backend, &ModelList::read(list).unwrap().models);
    }
    let first = pool.backends()[0].identity.id.clone();
    let gets_requests = |model| {
        let leases = (0..20).map(|_| lease(&pool, Some(model)).unwrap());
        let leases: Vec<Lease> = leases.collect();
        leases.iter().any(|it| it.backend().identity.id == first)
    };
    assert!(gets_requests("a"));
    is_avoided.set(true);
    assert!(!gets_requests("a") && gets_requests("b"));
    pool.backends()[1].update_state(|state| state.health = Health::Down);
    assert!(gets_requests("a"), "the last choice");
}

/// A pool of a backend with a context of 2,048 tokens and one of 16,384, which are up. Requests wake
/// sleeping backends.
fn uneven_pool() -> BackendPool {
    let mut backends: Vec<Backend> = (8000..).map(backend_at).take(2).collect();
    for backend in &mut backends {
        backend.facets.options.push(Box::new(Waking::default()));
    }
    let facets = PoolFacets(vec![Arc::new(Waking::default())]);
    let pool = BackendPool::with_facets(backends, &PoolSettings::default(), facets);
    for (backend, length) in pool.backends().iter().zip([2_048, 16_384]) {
        backend.update_state(|state| state.health = Health::Up);
        let list = serde_json::json!({ "data": [{ "id": "a", "max_model_len": length }] });
        let list = ModelList::read(list.to_string().as_bytes()).unwrap();
        pool.set_models(backend, &list.models);
    }
    pool
}

/// The requirements of a request with the prompt `prompt` and at most 8 output tokens.
fn short_output(
    prompt: &Arc<PromptFingerprint>,
    longer_than: Option<u32>,
) -> BackendRequirements<'_> {
    let max_tokens = Some(8);
    BackendRequirements {
        prompt,
        max_tokens,
        longer_than,
        ..requirements(Some("a"))
    }
}

fn prompt_of(bytes: u64) -> Arc<PromptFingerprint> {
    Arc::new(PromptFingerprint {
        bytes,
        ..PromptFingerprint::default()
    })
}

/// Leases a backend for a request with a prompt of this many bytes. Returns its position, too.
fn lease_for(
    pool: &BackendPool,
    bytes: u64,
    longer_than: Option<u32>,
) -> Result<(usize, Lease), GatewayError> {
    let prompt = prompt_of(bytes);
    let (lease, _) = pool.lease(short_output(&prompt, longer_than), &[], clock::now())?;
    let is_leased = |backend: &Arc<Backend>| Arc::ptr_eq(backend, lease.backend());
    Ok((pool.backends().iter().position(is_leased).unwrap(), lease))
}

/// The position of the backend that a request with a prompt of this many bytes gets.
fn position(
    pool: &BackendPool,
    bytes: u64,
    longer_than: Option<u32>,
) -> Result<usize, GatewayError> {
    lease_for(pool, bytes, longer_than).map(|(position, _)| position)
}

#[test]
fn a_long_request_waits_for_enough_context() {
    const LONG: u64 = 30_000;
    let down = |backend: &Arc<Backend>| backend.mark_down("refused");
    let starting = |backend: &Arc<Backend>| {
        backend.update_state(|state| state.set_down(DownCause::Starting, &"it starts".into()));
    };
    let drained = |backend: &Arc<Backend>| {
        backend.drain(Drain::begin(DrainInitiator::Configuration, None, None));
    };
    let asleep = |backend: &Arc<Backend>| {
        backend.update_state(|state| state.withdrawal = Some(Availability::Asleep));
    };
    for rest in [
        &down as &dyn Fn(&Arc<Backend>),
        &starting,
        &drained,
        &asleep,
    ] {
        let pool = uneven_pool();
        assert_eq!(position(&pool, LONG, None), Ok(1));
        rest(&pool.backends()[1]);
        assert_eq!(position(&pool, LONG, None), Err(GatewayError::NoBackend));
        assert_eq!(position(&pool, 1_000, None), Ok(0));
        assert_eq!(
            position(&pool, 1_000, Some(2_048)),
            Err(GatewayError::NoBackend)
        );
        assert_eq!(position(&pool, 1_000_000, None), Ok(0), "too long for all");
    }
    let retired = uneven_pool();
    let last = retired.backends()[1].clone();
    last.update_state(|state| state.set_down(DownCause::Retired, &"retired".into()));
    assert_eq!(position(&retired, LONG, None), Ok(0), "it never returns");
}

#[test]
fn a_hopeless_wait_for_more_context_ends() {
    let pool = uneven_pool();
    let long = pool.backends()[1].clone();
    long.mark_down("refused");
    let waiting = position(&pool, 1_000, Some(2_048));
    assert_eq!(waiting, Err(GatewayError::NoBackend));
    let list = serde_json::json!({ "data": [{ "id": "a", "max_model_len": 2_048 }] });
    let list = ModelList::read(list.to_string().as_bytes()).unwrap();
    pool.set_models(&long, &list.models);
    let asked = position(&pool, 1_000, Some(2_048));
    assert_eq!(asked, Ok(0), "its error is the response");
}

#[test]
fn only_backends_with_enough_context_are_woken() {
    // The choice among several backends is random.
    for _ in 0..16 {
        let pool = uneven_pool();
        let backends = pool.backends();
        for backend in backends.iter() {
            backend.update_state(|state| state.withdrawal = Some(Availability::Asleep));
        }
        assert_eq!(position(&pool, 30_000, None), Err(GatewayError::NoBackend));
        let is_woken = |at: usize| {
            let mut facets = backends[at].facets.each();
            facets.any(BackendFacet::is_activation_requested)
        };
        assert!(!is_woken(0) && is_woken(1));
    }
}

#[test]
fn long_requests_wait_in_their_own_group() {
    let pool = uneven_pool();
    let group = |bytes, longer_than| {
        let prompt = prompt_of(bytes);
        pool.capacity_group(&short_output(&prompt, longer_than), clock::now())
            .backends
    };
    assert_eq!((group(1_000, None), group(1_000_000, None)), (0, 0));
    assert!(group(30_000, None) != 0 && group(30_000, None) == group(50_000, None));
    assert_eq!(group(1_000, Some(2_048)), group(30_000, None));
}

#[test]
fn a_refused_length_is_not_sent_again() {
    let (pool, now) = (uneven_pool(), clock::now());
    let short = pool.backends()[0].clone();
    short
        .load
        .estimator
        .learned()
        .on_too_long(33_000, 2_049, now);
    let usage = Usage {
        input: Some(9),
        ..Usage::default()
    };
    for _ in 0..50 {
        let (position, lease) = lease_for(&pool, 33_000, None).unwrap();
        assert_eq!(position, 1);
        lease.on_prefilled(&usage, now);
    }
}
