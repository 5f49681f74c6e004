//! The replicas as they are believed to be. Belief comes from three sources: the configuration,
//! what they say when they are looked at, and how our own requests fare.

use super::fleet::{Fleet, Limits};
use super::roster::{Change, Roster, Selection};
use super::routes::{Named, Routes};
use super::vacancies::Vacancies;
use super::{Backend, LabelledModel, Lease, Readiness};
use arc_swap::Guard;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::error::Error;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{Decision, Outcome, RequestRecord};
use tokenweir_core::resilience::Symptom;
use tokenweir_core::routing::high_water::Marks;
use tokenweir_core::routing::{Ask, Policy, PolicyKind, Prompt};

/// All replicas, and the policy that chooses among them.
#[derive(Debug)]
pub struct Pool {
    roster: Arc<Roster>,
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

/// The routes of the fleet as it was when they were asked for.
struct RoutesOf(Guard<Arc<Fleet>>);

impl Pool {
    /// A pool of replicas that have not been looked at, and names for what they serve.
    pub fn new(backends: Vec<Backend>, names: &[Named], policy: Policy) -> Self {
        let vacancies = Arc::<Vacancies>::default();
        let roster = Roster::new(vacancies.clone());
        let pool = Self { roster, questions: AtomicU64::new(0), vacancies };
        let change = pool.plan(backends);
        let names = names.to_vec();
        pool.change(change, &Selection { names, policy, ..Selection::default() });
        pool
    }

    /// Asks these policies the same questions, to tell what they would have chosen.
    pub fn with_shadow(self, kinds: &[PolicyKind]) -> Self {
        self.roster.set_shadow(kinds);
        self
    }

    /// With fewer than this share of its replicas not ejected, it asks them all.
    pub fn with_panic_threshold(self, panic_threshold: f64) -> Self {
        self.roster.set_panic_threshold(panic_threshold);
        self
    }

    /// Has labels for at most this many models that the configuration does not name.
    pub fn with_most_labels(self, most: usize) -> Self {
        self.roster.set_most_labels(most);
        self
    }

    /// The replicas.
    pub fn backends(&self) -> Arc<[Arc<Backend>]> {
        self.roster.fleet().backends.clone()
    }

    /// Replicas that went away, and still have requests.
    pub fn leaving(&self) -> Vec<Arc<Backend>> {
        self.roster.leaving()
    }

    /// What it takes to have these replicas, and no others. Those that are there already, at the
    /// same place under the same name and key, stay as they are, with all that is known of them.
    pub fn plan(&self, backends: Vec<Backend>) -> Change {
        self.roster.plan(backends)
    }

    /// Has the replicas of a change, and no others, from the next request on. Requests at those
    /// that go away are not touched.
    pub fn change(&self, change: Change, selection: &Selection) {
        self.roster.change(change, selection);
        // Whoever waits may have a place now, or none any more.
        self.vacancies.tell();
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.roster.fleet().policy
    }

    /// Memory of what is remembered to draw short lists of a large fleet.
    pub fn short_list_bytes(&self) -> usize {
        self.roster.fleet().shortlist.bytes()
    }

    /// Word of places that may have become free.
    pub fn vacancies(&self) -> &Vacancies {
        &self.vacancies
    }

    /// Closes a connection to some backend that no request uses, so that its file descriptor is free.
    /// Whether there was one.
    pub fn close_idle(&self) -> bool {
        let backends = self.backends();
        // Not always the same one first: it would lose all its connections.
        let (before, after) = backends.split_at(fastrand::usize(..=backends.len()));
        after.iter().chain(before).any(|backend| backend.idle().close_oldest())
    }

    /// Whether any replica may be sent requests, as [`Readiness::is_ready`] tells.
    pub fn is_ready(&self) -> bool {
        self.roster.fleet().is_ready(clock::now())
    }

    /// Which replicas may be sent requests, and why the others may not. Logs the end of panic mode.
    pub fn readiness(&self, now: Instant) -> Readiness {
        self.roster.fleet().readiness(now)
    }

    /// The models that are label values.
    pub fn labelled_models(&self, now: Instant) -> Vec<LabelledModel> {
        self.roster.labelled_models(now)
    }

    /// The replica of this name gets nothing new, and finishes what it has; or it gets its share
    /// again. This holds for as long as the replica is in the fleet. Whether that is a change;
    /// `None` if there is no such replica.
    pub fn drain(&self, name: &str, is_drained: bool) -> Option<bool> {
        let fleet = self.roster.fleet();
        let known = fleet.backends.iter().find(|backend| backend.id.as_str() == name);
        known.map(|backend| backend.drain(is_drained))
    }

    /// A place at the replica that the policy chooses, other than those in `tried`.
    pub fn lease(
        &self,
        need: Need<'_>,
        tried: &[Arc<Backend>],
        now: Instant,
    ) -> Result<(Lease, Arc<Decision>), Error> {
        let limits = Limits::new(tried, None);
        let place = self.roster.fleet().lease(&need, &self.ask(&need), &limits, now)?;
        place.ok_or(Error::NoBackend)
    }

    /// A place at the replica that the policy chooses among those below their marks. `None`: there
    /// are some that could take the request, and all are past a mark.
    pub fn lease_below(
        &self,
        marks: &Marks,
        need: Need<'_>,
        now: Instant,
    ) -> Result<Option<(Lease, Arc<Decision>)>, Error> {
        let limits = Limits::new(&[], Some(marks));
        self.roster.fleet().lease(&need, &self.ask(&need), &limits, now)
    }

    fn ask(&self, need: &Need<'_>) -> Ask {
        let sequence = self.questions.fetch_add(1, Ordering::Relaxed);
        Ask { sequence, seed: need.seed, session: need.session }
    }

    /// Where requests for each model go now. To be looked at and dropped, not to be kept.
    pub fn routes(&self) -> impl Deref<Target = Routes> + use<> {
        RoutesOf(self.roster.fleet())
    }
}

impl Deref for RoutesOf {
    type Target = Routes;

    fn deref(&self) -> &Routes {
        &self.0.routes
    }
}

/// A request that a backend failed asks for a health check of it: a backend that fails fast looks
/// idle.
impl Sink for Pool {
    /// A prefill has ended.
    fn first_output(&self, _: &RequestRecord) {
        self.vacancies.tell();
    }

    fn finished(&self, record: &RequestRecord) {
        if !record.outcome.is_backend_failure() {
            return;
        }
        let fleet = self.roster.fleet();
        let backend = fleet.backends.iter().find(|backend| Some(&backend.id) == record.backend());
        let Some(backend) = backend else { return };
        // What failed before its first output has been told already.
        if record.timings.first_output.is_some() {
            let is_given_up = record.outcome == Outcome::Aborted;
            let symptom = if is_given_up { Symptom::Draining } else { Symptom::Died };
            backend.on_failure(symptom, symptom.as_str(), clock::now());
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
