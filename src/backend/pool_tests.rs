//! The pool over replicas that say what a test wants.

use super::*;
use crate::backend::Model;
use crate::backend::address::Address;
use crate::clock;
use crate::routing::Own;
use serde_json::json;
use std::sync::LazyLock;

fn pool(models: &[Option<&[&str]>]) -> Pool {
    let backend = |port: usize| {
        let address = Address::parse(&format!("http://127.0.0.1:{}", 8000 + port)).unwrap();
        Backend::new(address.default_id(), address, None)
    };
    let pool = Pool::new((0..models.len()).map(backend).collect(), &[], Policy::default());
    for (backend, models) in pool.backends.iter().zip(models) {
        backend.update(|state| state.health = Health::Up);
        if let Some(ids) = models {
            let model = |id: &&str| Model::of(json!({ "id": id })).unwrap();
            backend.serves(&ids.iter().map(model).collect());
        }
    }
    pool
}

static PROMPT: LazyLock<Arc<Prompt>> =
    LazyLock::new(|| Arc::new(Prompt { bytes: 40, ..Prompt::default() }));

fn need(model: Option<&str>) -> Need<'_> {
    Need { model, prompt: &PROMPT, is_stream: true, session: None, seed: 0 }
}

fn lease(pool: &Pool, model: Option<&str>) -> Result<Lease, Error> {
    pool.lease(need(model), &[], clock::now()).map(|(lease, _)| lease)
}

#[test]
fn a_request_goes_only_where_its_model_is() {
    let pool = pool(&[Some(&["a"]), Some(&["b"])]);
    for _ in 0..4 {
        let lease = lease(&pool, Some("b")).unwrap();
        assert_eq!(lease.backend().id.as_str(), "127.0.0.1:8001");
    }
}

#[test]
fn a_model_is_unknown_only_if_every_replica_has_said_what_it_serves() {
    let all_known = pool(&[Some(&["a"]), Some(&["b"])]);
    let error = lease(&all_known, Some("c")).unwrap_err();
    assert_eq!(error, Error::UnknownModel { model: "c".into(), known: "`a`, `b`".into() });
    let one_silent = pool(&[Some(&["a"]), None]);
    assert!(lease(&one_silent, Some("c")).is_ok());
    one_silent.backends[1].suspect("gone");
    assert_eq!(lease(&one_silent, Some("c")).unwrap_err(), Error::NoBackend);
}

#[test]
fn a_replica_that_is_down_or_was_tried_is_left_out() {
    let pool = pool(&[None, None]);
    let (first, _) = pool.lease(need(None), &[], clock::now()).unwrap();
    let (second, _) = pool.lease(need(None), &[first.backend().clone()], clock::now()).unwrap();
    assert_ne!(first.backend().id, second.backend().id);
    let tried = [first.backend().clone(), second.backend().clone()];
    assert_eq!(pool.lease(need(None), &tried, clock::now()).unwrap_err(), Error::NoBackend);
    pool.backends.iter().for_each(|backend| backend.suspect("refused"));
    assert!(!pool.is_ready());
    assert_eq!(lease(&pool, None).unwrap_err(), Error::NoBackend);
}

#[test]
fn a_dropped_lease_leaves_nothing_in_flight() {
    let pool = pool(&[None]);
    let lease = lease(&pool, None).unwrap();
    let own = || pool.backends[0].ledger.own();
    assert_eq!((own().in_flight, own().backlog), (1, 10));
    drop(lease);
    assert_eq!(own(), Own::default());
}

#[test]
fn below_the_marks_only_replicas_with_room_are_chosen_and_none_is_no_error() {
    let marks = Marks { waiting: None, kv_usage: None, in_flight: Some(1) };
    let pool = pool(&[None, None]);
    let place = |model| pool.lease_below(&marks, need(model), clock::now());
    let (first, _) = place(None).unwrap().unwrap();
    let (second, _) = place(None).unwrap().unwrap();
    assert_ne!(first.backend().id, second.backend().id);
    assert!(place(None).unwrap().is_none(), "all are past their mark");
    drop(second);
    assert!(place(None).unwrap().is_some());
    pool.backends.iter().for_each(|backend| backend.suspect("gone"));
    assert_eq!(place(None).unwrap_err(), Error::NoBackend);
}

#[test]
fn in_a_large_fleet_a_request_goes_where_its_prompt_was_and_any_replica_that_is_up_is_found() {
    let pool = pool(&[None; 200]);
    let words = "a long prompt ".repeat(4_000);
    let prompt = Arc::new(Prompt::new(1, std::iter::once(words.as_bytes())));
    let place = |seed| {
        let need = Need { prompt: &prompt, seed, ..need(None) };
        let (lease, decision) = pool.lease(need, &[], clock::now()).unwrap();
        (lease.backend().id.clone(), decision)
    };
    let (first, decision) = place(1);
    assert_eq!(decision.considered.len() + decision.left_out, 32, "drawn from all");
    for seed in 2..50 {
        let (again, decision) = place(seed);
        assert_eq!((again, decision.reason), (first.clone(), "cached_prefix"));
    }
    let (last, others) = pool.backends.split_last().unwrap();
    for backend in others {
        backend.suspect("gone");
    }
    assert_eq!(place(50).0, last.id);
}

#[tokio::test]
async fn a_place_that_becomes_free_is_told_only_while_somebody_waits() {
    let pool = pool(&[None]);
    let told = || futures_util::FutureExt::now_or_never(pool.vacancies().changed()).is_some();
    drop(lease(&pool, None).unwrap());
    assert!(!told());
    pool.vacancies().set_waiting(1);
    assert!(!told());
    drop(lease(&pool, None).unwrap());
    assert!(told());
    pool.backends[0].suspect("gone");
    assert!(told() && !told(), "once for each change");
    pool.first_output(&crate::record::sample::streamed());
    assert!(told(), "a prefill has ended");
}
