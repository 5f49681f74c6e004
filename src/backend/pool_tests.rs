//! Where requests go, and what a change of the fleet leaves as it was.

use super::*;
use crate::backend::Health;
use proptest::prelude::*;
use serde_json::json;
use std::sync::LazyLock;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_core::model::Model;
use tokenweir_core::record::BackendId;
use tokenweir_core::routing::Own;

fn pool(models: &[Option<&[&str]>]) -> Pool {
    let backend = |port: usize| {
        let address = Address::parse(&format!("http://127.0.0.1:{}", 8000 + port)).unwrap();
        Backend::new(address.default_id(), address, None)
    };
    let pool = Pool::new((0..models.len()).map(backend).collect(), &[], Policy::default());
    for (backend, models) in pool.backends().iter().zip(models) {
        backend.update(|state| state.health = Health::Up);
        if let Some(ids) = models {
            let model = |id: &&str| Model::of(&json!({ "id": id })).unwrap();
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
    one_silent.backends()[1].suspect("gone");
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
    pool.backends().iter().for_each(|backend| backend.suspect("refused"));
    assert!(!pool.is_ready());
    assert_eq!(lease(&pool, None).unwrap_err(), Error::NoBackend);
}

#[test]
fn a_dropped_lease_leaves_nothing_in_flight() {
    let pool = pool(&[None]);
    let lease = lease(&pool, None).unwrap();
    let own = || pool.backends()[0].ledger.own();
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
    pool.backends().iter().for_each(|backend| backend.suspect("gone"));
    assert_eq!(place(None).unwrap_err(), Error::NoBackend);
}

#[test]
fn a_request_waits_for_a_full_backend_rather_than_go_to_one_that_is_stuck() {
    let marks = Marks { waiting: None, kv_usage: None, in_flight: Some(2) };
    let pool = pool(&[None, None]);
    let begun = clock::now();
    let later = begun + Duration::from_secs(5);
    let place = |at| pool.lease_below(&marks, need(None), at).unwrap().map(|(lease, _)| lease);
    let stuck = place(begun).unwrap();
    let others = [place(later).unwrap(), place(later).unwrap()];
    assert!(others.iter().all(|other| other.backend().id != stuck.backend().id));
    assert!(place(later).is_none(), "one is full, the other one is stuck");
    stuck.replica().on_first_output(later);
    assert_eq!(place(later).unwrap().backend().id, stuck.backend().id);
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
    assert_eq!(decision.candidates(), 4, "chosen at a glance");
    for seed in 2..50 {
        let (again, decision) = place(seed);
        assert_eq!((again, decision.reason()), (first.clone(), "cached_prefix"));
    }
    let backends = pool.backends();
    for backend in backends.iter().skip(1).step_by(2) {
        assert_eq!(pool.drain(backend.id.as_str(), true), Some(true));
    }
    for seed in 1..50 {
        let (lease, decision) = pool.lease(Need { seed, ..need(None) }, &[], clock::now()).unwrap();
        assert_eq!((lease.backend().weight(), decision.candidates()), (1, 4), "drained ones show");
    }
    for backend in backends.iter() {
        pool.drain(backend.id.as_str(), false);
    }
    let (last, others) = backends.split_last().unwrap();
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
    pool.backends()[0].suspect("gone");
    assert!(told() && !told(), "once for each change");
    pool.first_output(&tokenweir_core::record::sample::streamed());
    assert!(told(), "a prefill has ended");
}

// === changes ===

/// A replica on this port, as the configuration has it.
fn at(port: usize) -> Backend {
    let address = Address::parse(&format!("http://127.0.0.1:{port}")).unwrap();
    Backend::new(address.default_id(), address, None)
}

fn change(pool: &Pool, backends: Vec<Backend>) {
    pool.change(pool.plan(backends), &Selection::default());
    pool.backends().iter().for_each(|backend| backend.update(|state| state.health = Health::Up));
}

fn ports(pool: &Pool) -> Vec<u16> {
    pool.backends().iter().map(|backend| backend.address.host_and_port().1).collect()
}

#[test]
fn a_replica_that_stays_keeps_what_is_known_of_it_and_takes_its_new_terms() {
    let pool = pool(&[Some(&["a"]), Some(&["b"])]);
    let before = pool.backends();
    let lease = lease(&pool, Some("a")).unwrap();
    change(&pool, vec![at(8001), at(8000).with_weight(7).with_horizon(Duration::from_secs(9))]);
    let after = pool.backends();
    assert!(Arc::ptr_eq(&before[0], &after[0]) && Arc::ptr_eq(&before[1], &after[1]));
    assert_eq!((after[0].weight(), after[0].in_flight()), (7, 1));
    assert_eq!(after[0].ledger.horizon(), Duration::from_secs(9));
    assert_eq!(pool.routes().of(Some("a")).replicas[..], [0], "it need not say it again");
    drop(lease);
    assert_eq!(after[0].in_flight(), 0);
}

#[test]
fn one_with_another_key_or_name_is_another_replica() {
    let pool = pool(&[None]);
    let before = pool.backends();
    let address = before[0].address.clone();
    for other in [
        Backend::new(BackendId::new("named"), address.clone(), None),
        Backend::new(address.default_id(), address.clone(), Some("Bearer a".parse().unwrap())),
    ] {
        change(&pool, vec![other]);
        assert!(!Arc::ptr_eq(&before[0], &pool.backends()[0]));
    }
}

#[test]
fn one_that_goes_away_gets_nothing_new_and_is_leaving_until_its_last_request_ends() {
    let pool = pool(&[None, None]);
    let leases = [lease(&pool, None).unwrap(), lease(&pool, None).unwrap()];
    change(&pool, vec![at(8001), at(8002)]);
    for _ in 0..10 {
        let port = lease(&pool, None).unwrap().backend().address.host_and_port().1;
        assert_ne!(port, 8000);
    }
    let leaving = || pool.leaving().iter().map(|it| it.in_flight()).collect::<Vec<_>>();
    assert_eq!(leaving(), [1]);
    drop(leases);
    assert_eq!(leaving(), [0; 0]);
    assert_eq!(lease(&pool, None).unwrap().backend().in_flight(), 1);
}

#[test]
fn names_and_the_policy_change_with_the_fleet() {
    let pool = pool(&[Some(&["a"]), Some(&["a"])]);
    let name = |backends: &[&str]| Named {
        name: "gpt".into(),
        served_as: Some("a".into()),
        backends: Some(backends.iter().map(|name| (*name).to_owned()).collect()),
        ..Named::default()
    };
    let policy = Policy { kind: PolicyKind::P2c, ..Policy::default() };
    let shadow = vec![PolicyKind::P2c, PolicyKind::Random];
    let names = vec![name(&["127.0.0.1:8001"])];
    let selection = Selection { names, policy, shadow, ..Selection::default() };
    pool.change(pool.plan(vec![at(8001), at(8002)]), &selection);
    assert_eq!(ports(&pool), [8002, 8001]);
    pool.backends()[0].serves(&[Model::of(&json!({ "id": "a" })).unwrap()].into());
    assert_eq!(pool.routes().of(Some("gpt")).replicas[..], [1], "only 8001 may be asked");
    assert_eq!(pool.policy().kind, PolicyKind::P2c);
    change(&pool, vec![at(8001)]);
    assert_eq!(pool.routes().of(Some("gpt")).replicas[..], [0; 0], "the name is gone");
}

#[test]
fn whoever_waits_hears_of_a_change() {
    let pool = pool(&[None]);
    pool.vacancies().set_waiting(1);
    let told = || futures_util::FutureExt::now_or_never(pool.vacancies().changed()).is_some();
    assert!(!told());
    pool.change(pool.plan(vec![at(8000), at(8001)]), &Selection::default());
    assert!(told());
}

#[test]
fn a_large_fleet_remembers_what_it_was_sent_when_others_come_and_go() {
    let pool = pool(&[None; 100]);
    let words = "a long prompt ".repeat(4_000);
    let prompt = Arc::new(Prompt::new(1, std::iter::once(words.as_bytes())));
    let place = |seed| {
        let need = Need { prompt: &prompt, seed, ..need(None) };
        pool.lease(need, &[], clock::now()).unwrap().0.backend().id.clone()
    };
    let first = place(1);
    let stays =
        |port: &usize| port.is_multiple_of(2) || first.as_str().ends_with(&port.to_string());
    change(&pool, (8000..8100).filter(stays).chain(9000..9060).map(at).collect());
    for seed in 2..50 {
        assert_eq!(place(seed), first);
    }
}

proptest! {
    #[test]
    fn the_fleet_is_what_it_was_told_to_be_and_those_that_stay_keep_their_places(
        lists in proptest::collection::vec(proptest::collection::btree_set(0..12_usize, 0..9), 1..6),
    ) {
        let pool = pool(&[]);
        for wanted in lists {
            let before = pool.backends();
            change(&pool, wanted.iter().map(|number| at(8000 + number)).collect());
            let (after, mut ports) = (pool.backends(), ports(&pool));
            for (place, backend) in before.iter().enumerate().take(after.len()) {
                let port = usize::from(backend.address.host_and_port().1);
                prop_assert!(
                    !wanted.contains(&(port - 8000)) || Arc::ptr_eq(backend, &after[place])
                );
            }
            ports.sort_unstable();
            let wanted: Vec<u16> = wanted.iter().map(|number| 8000 + *number as u16).collect();
            prop_assert_eq!(ports, wanted);
        }
    }
}
