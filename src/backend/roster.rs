//! The fleet as it is now, and what changes it: replicas come and go, and they say which models
//! they serve.

use super::Backend;
use super::fleet::{Fleet, routes};
use super::labels::{LabelledModel, Labels, MOST_LABELS};
use super::routes::{Lists, Named, Rule};
use super::vacancies::Vacancies;
use arc_swap::{ArcSwap, Guard};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::model::Model;
use tokenweir_core::record::BackendId;
use tokenweir_core::resilience;
use tokenweir_core::routing::{Policy, PolicyKind, Shortlist};

/// The fleet as it is now.
#[derive(Debug)]
pub(super) struct Roster {
    fleet: ArcSwap<Fleet>,
    /// Held until a changed fleet stands, so that no older one is put over it.
    changes: Mutex<Changes>,
    vacancies: Arc<Vacancies>,
}

/// What changes of the fleet have to know of each other.
#[derive(Debug)]
struct Changes {
    lists: Lists,
    labels: Labels,
    /// Replicas that went away while they had requests.
    leaving: Vec<Arc<Backend>>,
}

/// How a replica is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Names that clients may ask for.
    pub names: Vec<Named>,
    /// The policy.
    pub policy: Policy,
    /// Policies that are asked the same, and never obeyed.
    pub shadow: Vec<PolicyKind>,
    /// Share of the replicas that must not be ejected; with fewer, all of them are asked.
    pub panic_threshold: f64,
    /// Models that have a label of their own, besides the names.
    pub most_labels: usize,
}

/// The replicas that are to be the fleet.
#[derive(Debug)]
pub struct Change(Vec<Member>);

#[derive(Debug)]
enum Member {
    /// It is in the fleet, and has other terms from then on.
    Stays(Arc<Backend>, Box<Backend>),
    Comes(Arc<Backend>),
}

impl Default for Selection {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            policy: Policy::default(),
            shadow: Vec::new(),
            panic_threshold: resilience::Settings::default().panic_threshold,
            most_labels: MOST_LABELS,
        }
    }
}

// === impl Roster ===

impl Roster {
    /// No replicas. Their changes are told to `vacancies`.
    pub(super) fn new(vacancies: Arc<Vacancies>) -> Arc<Self> {
        let mut labels = Labels::new(MOST_LABELS);
        let fleet = Fleet {
            backends: Arc::default(),
            ids: Arc::default(),
            routes: routes(&[], &[], &mut labels),
            panic: Arc::default(),
            rules: Arc::default(),
            shortlist: Arc::new(Shortlist::new(clock::now(), 0)),
            policy: Policy::default(),
            shadow: Arc::default(),
            panic_threshold: 0.0,
        };
        let changes = Changes { lists: Lists::default(), labels, leaving: Vec::new() };
        let (fleet, changes) = (ArcSwap::from_pointee(fleet), Mutex::new(changes));
        Arc::new(Self { fleet, changes, vacancies })
    }

    /// The fleet. To be looked at and dropped.
    pub(super) fn fleet(&self) -> Guard<Arc<Fleet>> {
        self.fleet.load()
    }

    pub(super) fn plan(self: &Arc<Self>, backends: Vec<Backend>) -> Change {
        let fleet = self.fleet();
        let member =
            |backend: Backend| match fleet.backends.iter().find(|known| known.is_same(&backend)) {
                Some(known) => Member::Stays(known.clone(), Box::new(backend)),
                None => Member::Comes(self.seat(backend)),
            };
        Change(backends.into_iter().map(member).collect())
    }

    /// A replica that tells this roster what it serves.
    fn seat(self: &Arc<Self>, backend: Backend) -> Arc<Backend> {
        let (roster, vacancies) = (Arc::downgrade(self), self.vacancies.clone());
        let shortlist = self.fleet().shortlist.clone();
        Arc::new(Backend { shortlist, roster, vacancies, ..backend })
    }

    pub(super) fn change(&self, Change(members): Change, selection: &Selection) {
        let mut changes = self.changes();
        let fleet = self.fleet();
        let next: Vec<Arc<Backend>> = members.into_iter().map(Member::settle).collect();
        let backends: Arc<[Arc<Backend>]> = seated(&fleet.backends, next).into();
        let ids: Arc<[BackendId]> = backends.iter().map(|backend| backend.id.clone()).collect();
        let rules: Arc<[Rule]> =
            selection.names.iter().map(|named| Rule::of(named, &ids)).collect();
        let went = fleet.backends.iter().filter(|backend| !contains(&backends, backend));
        for backend in went {
            backend.take_place(usize::MAX);
            changes.leaving.push(backend.clone());
        }
        fleet.shortlist.fit(backends.len());
        for (place, backend) in backends.iter().enumerate() {
            backend.take_place(place);
        }
        changes.labels.set_most(selection.most_labels);
        self.fleet.store(Arc::new(Fleet {
            routes: routes(&rules, &backends, &mut changes.labels),
            panic: fleet.panic.clone(),
            shortlist: fleet.shortlist.clone(),
            backends,
            ids,
            rules,
            policy: selection.policy,
            shadow: others(&selection.policy, &selection.shadow),
            panic_threshold: selection.panic_threshold,
        }));
        changes.forget_idle();
    }

    /// The same fleet, with these policies in shadow.
    pub(super) fn set_shadow(&self, kinds: &[PolicyKind]) {
        let mut changes = self.changes();
        let fleet = self.fleet().anew(&mut changes.labels);
        let shadow = others(&fleet.policy, kinds);
        self.fleet.store(Arc::new(Fleet { shadow, ..fleet }));
    }

    /// The same fleet, with another share that must not be ejected.
    pub(super) fn set_panic_threshold(&self, panic_threshold: f64) {
        let mut changes = self.changes();
        let fleet = self.fleet().anew(&mut changes.labels);
        self.fleet.store(Arc::new(Fleet { panic_threshold, ..fleet }));
    }

    /// A replica has said which models it serves.
    pub(super) fn serves(&self, backend: &Backend, models: &Arc<[Model]>) {
        let mut changes = self.changes();
        let models = changes.lists.shared(models);
        backend.update(|state| state.models = Some(models.clone()));
        self.fleet.store(Arc::new(self.fleet().anew(&mut changes.labels)));
    }

    /// The same fleet, with another bound of labels for models.
    pub(super) fn set_most_labels(&self, most: usize) {
        let mut changes = self.changes();
        changes.labels.set_most(most);
        self.fleet.store(Arc::new(self.fleet().anew(&mut changes.labels)));
    }

    /// The models that are label values.
    pub(super) fn labelled_models(&self, now: Instant) -> Vec<LabelledModel> {
        self.changes().labels.all(now)
    }

    /// Replicas that went away, and still have requests.
    pub(super) fn leaving(&self) -> Vec<Arc<Backend>> {
        let mut changes = self.changes();
        changes.forget_idle();
        changes.leaving.clone()
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every policy but the one that is obeyed, with its settings.
fn others(policy: &Policy, kinds: &[PolicyKind]) -> Arc<[Policy]> {
    let others = kinds.iter().filter(|kind| **kind != policy.kind);
    others.map(|kind| Policy { kind: *kind, ..*policy }).collect()
}

fn contains(backends: &[Arc<Backend>], wanted: &Arc<Backend>) -> bool {
    backends.iter().any(|backend| Arc::ptr_eq(backend, wanted))
}

/// The next replicas in their places: those that stay keep theirs, because what is remembered of a
/// large fleet names its replicas by position; newcomers take those that are free; the last ones
/// fill the gaps.
fn seated(before: &[Arc<Backend>], next: Vec<Arc<Backend>>) -> Vec<Arc<Backend>> {
    let staying: HashSet<*const Backend> = next.iter().map(Arc::as_ptr).collect();
    let known: HashSet<*const Backend> = before.iter().map(Arc::as_ptr).collect();
    let stays = |backend: &Arc<Backend>| staying.contains(&Arc::as_ptr(backend));
    let places = before.iter().map(|backend| Some(backend.clone()).filter(stays));
    let mut places: Vec<Option<Arc<Backend>>> = places.collect();
    let mut gaps = (0..places.len()).filter(|place| places[*place].is_none()).collect::<Vec<_>>();
    gaps.reverse();
    for newcomer in next.into_iter().filter(|backend| !known.contains(&Arc::as_ptr(backend))) {
        match gaps.pop() {
            Some(gap) => places[gap] = Some(newcomer),
            None => places.push(Some(newcomer)),
        }
    }
    // The rest of the gaps, from the highest.
    for gap in gaps {
        places.swap_remove(gap);
    }
    places.into_iter().flatten().collect()
}

// === impl Changes ===

impl Changes {
    fn forget_idle(&mut self) {
        self.leaving.retain(|backend| backend.in_flight() > 0);
    }
}

// === impl Change, Member ===

impl Change {
    /// Those that are not in the fleet yet. They may be looked at before they are.
    pub fn newcomers(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.0.iter().filter_map(|member| match member {
            Member::Comes(backend) => Some(backend),
            Member::Stays(..) => None,
        })
    }
}

impl Member {
    fn settle(self) -> Arc<Backend> {
        match self {
            Self::Comes(backend) => backend,
            Self::Stays(backend, terms) => {
                backend.take_terms(&terms);
                backend
            }
        }
    }
}
