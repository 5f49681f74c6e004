//! The replicas as they are believed to be. Belief comes from three sources: the configuration,
//! what they say when they are looked at, and how our own requests fare.

use super::routes::{Named, Route, Routes, Table};
use super::vacancies::Vacancies;
use super::{Backend, Health, Lease};
use crate::error::{self, Error};
use crate::observe::Sink;
use crate::record::{Decision, RequestRecord};
use crate::routing::high_water::Marks;
use crate::routing::{self, Ask, Candidate, Policy, PolicyKind, Prompt, Question, Shortlist};
use arc_swap::Guard;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// All replicas, and the policy that chooses among them.
#[derive(Debug)]
pub struct Pool {
    backends: Vec<Arc<Backend>>,
    shortlist: Shortlist,
    table: Arc<Table>,
    policy: Policy,
    /// Policies that are asked too, and never obeyed.
    shadow: Box<[Policy]>,
    questions: AtomicU64,
    vacancies: Arc<Vacancies>,
}

/// What a request needs of a replica.
#[derive(Debug, Clone, Copy)]
pub struct Need<'a> {
    /// The model, if the client named one.
    pub model: Option<&'a str>,
    /// Its prompt.
    pub prompt: &'a Arc<Prompt>,
    /// Whether its answer is a stream.
    pub is_stream: bool,
    /// A hash of its session, if it has one.
    pub session: Option<u64>,
    /// Randomness for the policy.
    pub seed: u64,
}

/// Which replicas a request does not go to.
struct Limits<'a> {
    /// It was sent there before.
    tried: &'a [Arc<Backend>],
    /// Those that are past these have no room. `None`: all have.
    marks: Option<&'a Marks>,
}

/// The replicas that could take a request, and are below their marks.
struct Open {
    /// Their positions in the pool.
    positions: Vec<usize>,
    /// Each of them, in the same order.
    candidates: Vec<Candidate>,
    /// There are others, past a mark.
    is_some_full: bool,
}

impl Pool {
    /// A pool of replicas that have not been looked at, and names for what they serve.
    pub fn new(backends: Vec<Backend>, names: &[Named], policy: Policy) -> Self {
        let vacancies = Arc::<Vacancies>::default();
        let ids: Vec<_> = backends.iter().map(|backend| &backend.id).collect();
        let table = Arc::new(Table::new(names, &ids));
        let places = backends.into_iter().enumerate();
        let seat = |(position, backend)| {
            let table = Some((table.clone(), position));
            Arc::new(Backend { table, vacancies: vacancies.clone(), ..backend })
        };
        let backends: Vec<_> = places.map(seat).collect();
        let shortlist = Shortlist::new(backends.len());
        let (shadow, questions) = (Box::default(), AtomicU64::new(0));
        Self { backends, shortlist, table, policy, shadow, questions, vacancies }
    }

    /// Asks these policies the same questions, to tell what they would have chosen.
    pub fn with_shadow(self, kinds: &[PolicyKind]) -> Self {
        let others = kinds.iter().filter(|kind| **kind != self.policy.kind);
        let shadow = others.map(|kind| Policy { kind: *kind, ..self.policy }).collect();
        Self { shadow, ..self }
    }

    /// The replicas, in the order of the configuration.
    pub fn backends(&self) -> &[Arc<Backend>] {
        &self.backends
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Memory of what is remembered to draw short lists of a large fleet.
    pub fn short_list_bytes(&self) -> usize {
        self.shortlist.bytes()
    }

    /// Word of places that may have become free.
    pub fn vacancies(&self) -> &Vacancies {
        &self.vacancies
    }

    /// Whether any replica may be sent requests.
    pub fn is_ready(&self) -> bool {
        self.backends.iter().any(|backend| backend.state().health == Health::Up)
    }

    /// A place at the replica that the policy chooses, other than those in `tried`.
    pub fn lease(
        &self,
        need: Need<'_>,
        tried: &[Arc<Backend>],
        now: Instant,
    ) -> Result<(Lease, Decision), Error> {
        let routes = self.table.routes();
        let route = routes.of(need.model);
        let ask = self.ask(&need);
        let open = self.open(route, &need, &ask, &Limits { tried, marks: None }, now);
        self.choose(need, &ask, &open, now).ok_or_else(|| no_candidate(need.model, route, &routes))
    }

    /// A place at the replica that the policy chooses among those below their marks. `None`: there
    /// are some that could take the request, and all are past a mark.
    pub fn lease_below(
        &self,
        marks: &Marks,
        need: Need<'_>,
        now: Instant,
    ) -> Result<Option<(Lease, Decision)>, Error> {
        let routes = self.table.routes();
        let route = routes.of(need.model);
        let ask = self.ask(&need);
        let open = self.open(route, &need, &ask, &Limits { tried: &[], marks: Some(marks) }, now);
        match self.choose(need, &ask, &open, now) {
            None if !open.is_some_full => Err(no_candidate(need.model, route, &routes)),
            place => Ok(place),
        }
    }

    fn ask(&self, need: &Need<'_>) -> Ask {
        let sequence = self.questions.fetch_add(1, Ordering::Relaxed);
        Ask { sequence, seed: need.seed, session: need.session }
    }

    fn choose(
        &self,
        need: Need<'_>,
        ask: &Ask,
        open: &Open,
        now: Instant,
    ) -> Option<(Lease, Decision)> {
        let question = Question::new(&self.policy, &open.candidates, ask);
        let choice = question.pick()?;
        let position = open.positions[choice.index];
        let backend = &self.backends[position];
        let condition = backend.state.load().condition(now);
        let id = |index: usize| self.backends[open.positions[index]].id.clone();
        let decision = Decision::new(&question, choice, condition, id);
        let decision = decision.with_shadow(&question, &self.shadow, id);
        let candidate = &open.candidates[choice.index];
        let lease = Lease::new(backend.clone(), candidate, need.prompt, need.is_stream, now);
        self.shortlist.sent(need.prompt, position);
        Some((lease, decision))
    }

    /// The replicas that could take a request for a model, and are within the limits: in a large
    /// fleet those of a short list, or all if none of them is.
    fn open(
        &self,
        route: &Route,
        need: &Need<'_>,
        ask: &Ask,
        limits: &Limits<'_>,
        now: Instant,
    ) -> Open {
        let short = self.shortlist.of(self.policy.kind, &route.replicas, need.prompt, ask);
        let open = short.map(|short| self.open_of(&short, route.adapter, need, limits, now));
        let found = open.filter(|open| !open.candidates.is_empty());
        found.unwrap_or_else(|| self.open_of(&route.replicas, route.adapter, need, limits, now))
    }

    fn open_of(
        &self,
        positions: &[usize],
        adapter: Option<u64>,
        need: &Need<'_>,
        limits: &Limits<'_>,
        now: Instant,
    ) -> Open {
        let is_tried = |backend| limits.tried.iter().any(|tried| Arc::ptr_eq(tried, backend));
        let mut open = Open {
            positions: Vec::with_capacity(positions.len()),
            candidates: Vec::with_capacity(positions.len()),
            is_some_full: false,
        };
        for position in positions {
            let backend = &self.backends[*position];
            let state = backend.state.load();
            let is_open = state.health == Health::Up && !state.is_asleep();
            if is_open && backend.weight > 0 && !is_tried(backend) {
                let has_adapter = adapter.is_none_or(|adapter| state.may_have(adapter));
                let candidate = backend.candidate(need.prompt, now);
                let candidate = Candidate { has_adapter, ..candidate };
                if limits.marks.is_some_and(|marks| marks.are_passed_by(&candidate)) {
                    open.is_some_full = true;
                } else {
                    open.candidates.push(candidate);
                    open.positions.push(*position);
                }
            }
        }
        routing::lend_lines(&mut open.candidates);
        open
    }

    /// Where requests for each model go now. To be looked at and dropped, not to be kept.
    pub fn routes(&self) -> Guard<Arc<Routes>> {
        self.table.routes()
    }
}

/// A model is unknown only if every replica has said what it serves.
fn no_candidate(model: Option<&str>, route: &Route, routes: &Routes) -> Error {
    match model {
        Some(model) if route.replicas.is_empty() => Error::UnknownModel {
            model: shortened(model),
            known: error::listed(routes.models().iter().map(|model| &model.id)),
        },
        _ => Error::NoBackend,
    }
}

/// Requests teach the pool: one that a replica failed asks for a look at it, because a replica that
/// fails fast looks idle; one whose model was not found there asks for a look at its models, because
/// adapters come and go.
impl Sink for Pool {
    /// A prefill has ended.
    fn first_output(&self, _: &RequestRecord) {
        self.vacancies.tell();
    }

    fn finished(&self, record: &RequestRecord) {
        let is_of_replica = record.refusal.is_none() && record.model.is_known();
        let is_not_found = is_of_replica && record.status == Some(404);
        if !is_not_found && !record.outcome.is_backend_failure() {
            return;
        }
        let backend = self.backends.iter().find(|backend| Some(&backend.id) == record.backend());
        match backend {
            Some(backend) if is_not_found => backend.doubt_models(),
            Some(backend) => backend.look_again.notify_one(),
            None => {}
        }
    }
}

/// What a client sent comes back to it in an error: not all of it if it is long.
fn shortened(model: &str) -> String {
    model.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
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
}
