//! The replicas as they are believed to be. Belief comes from three sources: the configuration,
//! what they say when they are looked at, and how our own requests fare.

use super::routes::{Named, Route, Routes, Table};
use super::vacancies::Vacancies;
use super::{Backend, Health, Lease};
use crate::clock;
use crate::error::{self, Error};
use crate::observe::Sink;
use crate::record::{Decision, Outcome, RequestRecord};
use crate::resilience::{self, Symptom};
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
    /// Share of replicas that must not be ejected; with fewer, all of them are asked.
    panic_threshold: f64,
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
    breakers: Breakers,
}

/// How far the replicas' circuit breakers are obeyed.
#[derive(Debug, Clone, Copy)]
enum Breakers {
    /// Altogether.
    Obeyed,
    /// Replicas that start slowly get what comes.
    WithoutSlowStart,
    /// Too many are ejected to leave them all out.
    Ignored,
}

/// The replicas that could take a request, and are below their marks.
struct Open {
    /// Their positions in the pool.
    positions: Vec<usize>,
    /// Each of them, in the same order.
    candidates: Vec<Candidate>,
    /// There are others, past a mark.
    is_some_full: bool,
    /// All that are up, with those that were left out by their breakers: ejected, or spared.
    found: usize,
    ejected: usize,
    spared: usize,
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
        let panic_threshold = resilience::Settings::default().panic_threshold;
        Self { backends, shortlist, table, policy, shadow, questions, vacancies, panic_threshold }
    }

    /// With fewer than this share of its replicas not ejected, it asks them all.
    pub fn with_panic_threshold(self, panic_threshold: f64) -> Self {
        Self { panic_threshold, ..self }
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
        let open = self.open(route, &need, &ask, &Limits::new(tried, None), now);
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
        let open = self.open(route, &need, &ask, &Limits::new(&[], Some(marks)), now);
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
        backend.breaker.on_pick(now);
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
        let open = self.open_now(route, need, ask, limits, now);
        let breakers = open.breakers(self.panic_threshold);
        match breakers {
            Breakers::Obeyed => open,
            breakers => self.open_now(route, need, ask, &Limits { breakers, ..*limits }, now),
        }
    }

    fn open_now(
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
            found: 0,
            ejected: 0,
            spared: 0,
        };
        for position in positions {
            let backend = &self.backends[*position];
            let state = backend.state.load();
            let is_open = state.health == Health::Up && !state.is_asleep();
            if is_open && backend.weight > 0 && !is_tried(backend) {
                open.found += 1;
                let luck = routing::unit(routing::mix(need.seed ^ backend.key));
                match limits.breakers {
                    Breakers::Ignored => {}
                    _ if backend.breaker.is_shut(now) => {
                        open.ejected += 1;
                        continue;
                    }
                    Breakers::Obeyed if backend.breaker.spares(now, luck) => {
                        open.spared += 1;
                        continue;
                    }
                    Breakers::Obeyed | Breakers::WithoutSlowStart => {}
                }
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

impl<'a> Limits<'a> {
    const fn new(tried: &'a [Arc<Backend>], marks: Option<&'a Marks>) -> Self {
        Self { tried, marks, breakers: Breakers::Obeyed }
    }
}

impl Open {
    /// How far breakers are to be obeyed, after all of them were.
    fn breakers(&self, panic_threshold: f64) -> Breakers {
        let left = self.found - self.ejected;
        let is_nobody_left = self.candidates.is_empty() && !self.is_some_full;
        if (left as f64) < panic_threshold * self.found as f64 {
            Breakers::Ignored
        } else if is_nobody_left && self.spared > 0 {
            Breakers::WithoutSlowStart
        } else {
            Breakers::Obeyed
        }
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
        let Some(backend) = backend else { return };
        if is_not_found {
            return backend.doubt_models();
        }
        // What failed before its first output has been told already.
        if record.timings.first_output.is_some() {
            let is_given_up = record.outcome == Outcome::Aborted;
            let symptom = if is_given_up { Symptom::Draining } else { Symptom::Died };
            backend.on_failure(symptom, symptom.as_str(), clock::now());
        }
    }
}

/// What a client sent comes back to it in an error: not all of it if it is long.
fn shortened(model: &str) -> String {
    model.chars().take(100).collect()
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
