//! The fleet at one moment: the replicas, and all that is made of them to choose one. A change of
//! any part makes another fleet, so a request never sees half of a change.

use super::labels::Labels;
use super::pool::Need;
use super::readiness::{self, PanicLog};
use super::routes::{Lists, Route, Routes, Rule};
use super::{Backend, Lease};
use std::sync::Arc;
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::error::{self, Error};
use tokenweir_core::model::Model;
use tokenweir_core::record::{BackendId, Decision};
use tokenweir_core::routing::high_water::{self, Marks};
use tokenweir_core::routing::{self, Ask, Candidate, Policy, Question, Shortlist};

/// The fleet at one moment.
#[derive(Debug)]
pub(super) struct Fleet {
    /// Each has its position for as long as it is there.
    pub(super) backends: Arc<[Arc<Backend>]>,
    /// Their names.
    pub(super) ids: Arc<[BackendId]>,
    pub(super) routes: Routes,
    /// What the configuration says of routes.
    pub(super) rules: Arc<[Rule]>,
    /// The same one in every fleet of a roster.
    pub(super) shortlist: Arc<Shortlist>,
    /// The same one in every fleet of a roster.
    pub(super) panic: Arc<PanicLog>,
    pub(super) policy: Policy,
    /// Policies that are asked too, and never obeyed.
    pub(super) shadow: Arc<[Policy]>,
    /// Share of the replicas that must not be ejected; with fewer, all of them are asked.
    pub(super) panic_threshold: f64,
}

/// Which replicas a request does not go to.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    /// It was sent there before.
    pub(super) tried: &'a [Arc<Backend>],
    /// Those that are past these have no room. `None`: all have.
    pub(super) marks: Option<&'a Marks>,
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
    /// What each is believed to be.
    candidates: Vec<Candidate>,
    /// There are others, past a mark.
    is_some_full: bool,
    /// All that are up, with those that were left out by their breakers: ejected, or spared.
    found: usize,
    ejected: usize,
    spared: usize,
    ignores_ejections: bool,
}

// === impl Fleet ===

impl Fleet {
    /// The same replicas, with routes by what they say now.
    pub(super) fn anew(&self, labels: &mut Labels) -> Self {
        Self {
            backends: self.backends.clone(),
            ids: self.ids.clone(),
            routes: routes(&self.rules, &self.backends, labels),
            rules: self.rules.clone(),
            shortlist: self.shortlist.clone(),
            panic: self.panic.clone(),
            policy: self.policy,
            shadow: self.shadow.clone(),
            panic_threshold: self.panic_threshold,
        }
    }

    /// A place at the replica that the policy chooses. `None`: some could take the request, and all
    /// are past a mark.
    pub(super) fn lease(
        &self,
        need: &Need<'_>,
        ask: &Ask,
        limits: &Limits<'_>,
        now: Instant,
    ) -> Result<Option<(Lease, Arc<Decision>)>, Error> {
        let route = self.routes.of(need.model);
        let open = self.open(route, need, ask, limits, now);
        let is_some_full = open.is_some_full;
        let is_panic = open.ignores_ejections && self.panics(&route.replicas, now);
        match self.choose(need, ask, open.candidates, is_panic, now) {
            None if !is_some_full => Err(self.no_candidate(need.model, route)),
            place => Ok(place),
        }
    }

    fn choose(
        &self,
        need: &Need<'_>,
        ask: &Ask,
        candidates: Vec<Candidate>,
        is_panic: bool,
        now: Instant,
    ) -> Option<(Lease, Arc<Decision>)> {
        let question = Question::new(self.policy, candidates, *ask);
        let mut choice = question.pick()?;
        if is_panic {
            choice.reason = routing::PANIC;
        }
        let candidate = &question.candidates()[choice.index];
        let backend = &self.backends[candidate.place];
        backend.breaker.on_pick(now);
        let lease = Lease::new(backend.clone(), candidate, need.prompt, need.is_stream, now);
        self.shortlist.sent(need.prompt, candidate.place);
        let condition = backend.state.load().condition(now);
        let decision = Decision::new(question, choice, condition, &self.ids, &self.shadow);
        Some((lease, Arc::new(decision)))
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
        let of = |positions: &[usize], breakers| {
            let limits = Limits { breakers, ..*limits };
            self.open_of(positions, route.adapter, need, &limits, now)
        };
        let look = |breakers| {
            let open = short.as_deref().map(|short| of(short, breakers));
            let open = open.filter(|open| !open.candidates.is_empty());
            open.unwrap_or_else(|| of(&route.replicas, breakers))
        };
        let mut open = look(Breakers::Obeyed);
        if short.is_some() && open.is_below(self.panic_threshold) {
            // A short list may have the ejected ones by chance: all are counted.
            open = of(&route.replicas, Breakers::Obeyed);
        }
        match open.breakers(self.panic_threshold) {
            Breakers::Obeyed => open,
            breakers => look(breakers),
        }
    }

    /// Those that are up. This is asked of all before anything else of any: the CPU then waits for
    /// all of them at once, in a fleet that does not fit into its caches.
    fn up_of(&self, positions: &[usize], tried: &[Arc<Backend>]) -> Vec<usize> {
        let is_tried = |backend| tried.iter().any(|tried| Arc::ptr_eq(tried, backend));
        let mut up = Vec::with_capacity(positions.len());
        up.extend(positions.iter().copied().filter(|position| {
            let backend = &self.backends[*position];
            backend.is_open() && backend.weight() > 0 && !is_tried(backend)
        }));
        up
    }

    fn open_of(
        &self,
        positions: &[usize],
        adapter: Option<u64>,
        need: &Need<'_>,
        limits: &Limits<'_>,
        now: Instant,
    ) -> Open {
        let up = self.up_of(positions, limits.tried);
        let mut open = Open {
            candidates: Vec::with_capacity(up.len()),
            is_some_full: false,
            found: up.len(),
            ejected: 0,
            spared: 0,
            ignores_ejections: matches!(limits.breakers, Breakers::Ignored),
        };
        let mut is_room_expected = false;
        for position in up {
            let backend = &self.backends[position];
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
            let may_have = |adapter| backend.state.load().may_have(adapter);
            let has_adapter = adapter.is_none_or(may_have);
            let candidate = backend.candidate(need.prompt, now);
            let candidate = Candidate { place: position, has_adapter, ..candidate };
            if limits.marks.is_some_and(|marks| marks.are_passed_by(&candidate)) {
                open.is_some_full = true;
                is_room_expected |= !high_water::is_stuck(&candidate);
            } else {
                open.candidates.push(candidate);
            }
        }
        if is_room_expected {
            open.candidates.retain(|candidate| !high_water::is_stuck(candidate));
        }
        routing::lend(&mut open.candidates);
        open
    }

    /// A model is unknown only if every replica has said what it serves.
    fn no_candidate(&self, model: Option<&str>, route: &Route) -> Error {
        match model {
            Some(model) if route.replicas.is_empty() => Error::UnknownModel {
                model: shortened(model),
                known: error::listed(self.routes.models().iter().map(|model| &model.id)),
            },
            _ => Error::NoBackend,
        }
    }
}

// === impl Limits, Open ===

impl<'a> Limits<'a> {
    pub(super) const fn new(tried: &'a [Arc<Backend>], marks: Option<&'a Marks>) -> Self {
        Self { tried, marks, breakers: Breakers::Obeyed }
    }
}

impl Open {
    /// Whether too few of them get requests for the others to be left out.
    fn is_below(&self, panic_threshold: f64) -> bool {
        readiness::is_panic(self.found, self.ejected, panic_threshold)
    }

    /// How far breakers are to be obeyed, after all of them were.
    fn breakers(&self, panic_threshold: f64) -> Breakers {
        let is_nobody_left = self.candidates.is_empty() && !self.is_some_full;
        if self.is_below(panic_threshold) {
            Breakers::Ignored
        } else if is_nobody_left && self.spared > 0 {
            Breakers::WithoutSlowStart
        } else {
            Breakers::Obeyed
        }
    }
}

/// The routes to these replicas, by what each of them said last. Models get their labels.
pub(super) fn routes(rules: &[Rule], backends: &[Arc<Backend>], labels: &mut Labels) -> Routes {
    let said = backends.iter().map(|backend| backend.state.load().models.clone());
    let said: Vec<Option<Arc<[Model]>>> = said.collect();
    labels.renew(rules.iter().map(Rule::name), Lists::models(&said), clock::now());
    Routes::new(rules, &said, labels)
}

/// What a client sent comes back to it in an error: not all of it if it is long.
fn shortened(model: &str) -> String {
    model.chars().take(100).collect()
}
