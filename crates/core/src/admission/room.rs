//! The room as a plain state machine: tickets come in, and each leaves exactly once, because it is
//! granted a place, gives up, or is turned away for a better one.

use super::fair::FairQueue;
use super::rate::Rate;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A request that waits, with what is done for it when it leaves.
#[derive(Debug)]
pub struct Ticket<T> {
    /// Its class; 0 is the highest.
    pub class: usize,
    /// Whose it is.
    pub tenant: u64,
    /// The model, if the client named one.
    pub model: Option<Arc<str>>,
    /// Tokens that it may hold in a KV cache: what a place costs its tenant.
    pub tokens: u64,
    /// It is granted no place from then on.
    pub deadline: Instant,
    /// Whatever belongs to it.
    pub payload: T,
}

/// The name of a ticket in its room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

/// What became of a ticket that came in.
#[derive(Debug)]
pub enum Entry<T> {
    /// It waits.
    Waits(Key),
    /// It waits, and this one, which is worse, had to leave.
    InsteadOf(Key, Refused<T>),
    /// It is no better than any that waits, and the room is full.
    Full(Refused<T>),
}

/// A ticket that gets no place.
#[derive(Debug)]
pub struct Refused<T> {
    /// The ticket.
    pub ticket: Ticket<T>,
    /// Seconds after which its client should ask again: its place in the line ÷ the rate at which
    /// the line moves, from 1 to 60.
    pub retry_after: u32,
}

/// Models for which there is no place, found while tickets are served.
#[derive(Debug, Default)]
pub struct Closed(Vec<Option<Arc<str>>>);

/// The room.
#[derive(Debug)]
pub struct Room<T> {
    places: usize,
    next: u64,
    tickets: BTreeMap<u64, Ticket<T>>,
    classes: Vec<FairQueue>,
    lanes: BTreeMap<Option<Arc<str>>, Lane>,
}

/// The tickets of one model.
#[derive(Debug)]
struct Lane {
    /// By class.
    waiting: Vec<usize>,
    grants: Rate,
}

/// Bounds of the time after which a client should ask again, in seconds. More than a minute is no
/// forecast, and the SDKs of OpenAI do not wait for much longer.
const RETRY: (f64, f64) = (1.0, 60.0);

impl<T> Room<T> {
    /// An empty room with so many places and classes.
    pub fn new(places: usize, classes: usize) -> Self {
        let classes = (0..classes.max(1)).map(|_| FairQueue::default()).collect();
        Self { places, next: 0, tickets: BTreeMap::new(), classes, lanes: BTreeMap::new() }
    }

    /// Has so many places and classes from now on. A ticket goes on in the class that `of` makes of
    /// the one that it had.
    pub fn change(&mut self, places: usize, classes: usize, of: impl Fn(usize) -> usize) {
        self.places = places;
        let classes = classes.max(1);
        self.classes = (0..classes).map(|_| FairQueue::default()).collect();
        self.lanes.values_mut().for_each(|lane| lane.waiting = vec![0; classes]);
        for (key, ticket) in &mut self.tickets {
            ticket.class = of(ticket.class).min(classes - 1);
            self.classes[ticket.class].push(ticket.tenant, *key);
            if let Some(lane) = self.lanes.get_mut(&ticket.model) {
                lane.waiting[ticket.class] += 1;
            }
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.tickets.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.tickets.is_empty()
    }

    /// How many wait in each class, the highest first.
    pub fn waiting(&self) -> Vec<usize> {
        let mut waiting = vec![0; self.classes.len()];
        for lane in self.lanes.values() {
            waiting.iter_mut().zip(&lane.waiting).for_each(|(sum, count)| *sum += count);
        }
        waiting
    }

    /// A ticket comes in. A class that there is not counts as the lowest.
    pub fn enter(&mut self, ticket: Ticket<T>, now: Instant) -> Entry<T> {
        let lowest = self.classes.len() - 1;
        let ticket = Ticket { class: ticket.class.min(lowest), ..ticket };
        if self.tickets.len() < self.places {
            return Entry::Waits(self.admit(ticket, now));
        }
        let worse = self.worse_than(&ticket).and_then(|worse| self.refuse(worse, now));
        if let Some(worse) = worse {
            return Entry::InsteadOf(self.admit(ticket, now), worse);
        }
        let place = self.line(ticket.class, ticket.model.as_ref()) + 1;
        let retry_after = self.retry_after(place, ticket.model.as_ref(), now);
        Entry::Full(Refused { ticket, retry_after })
    }

    /// A ticket leaves without a place; `None` if it has left before.
    pub fn leave(&mut self, key: Key) -> Option<Ticket<T>> {
        self.take(key, None)
    }

    /// A ticket is turned away; `None` if it has left before.
    pub fn refuse(&mut self, key: Key, now: Instant) -> Option<Refused<T>> {
        let Ticket { class, model, .. } = self.tickets.get(&key.0)?;
        let retry_after = self.retry_after(self.line(*class, model.as_ref()), model.as_ref(), now);
        Some(Refused { ticket: self.leave(key)?, retry_after })
    }

    /// The first ticket in the order of the room for whose model `offer` has something, and that.
    /// Models for which it has nothing are kept in `closed`, and not asked for again.
    pub fn first<R>(
        &self,
        now: Instant,
        closed: &mut Closed,
        mut offer: impl FnMut(&Ticket<T>) -> Option<R>,
    ) -> Option<(Key, R)> {
        for key in self.classes.iter().flat_map(FairQueue::tickets) {
            if closed.0.len() == self.lanes.len() {
                return None;
            }
            let ticket = self.tickets.get(&key)?;
            if ticket.deadline <= now || closed.has(ticket.model.as_deref()) {
                continue;
            }
            match offer(ticket) {
                Some(offered) => return Some((Key(key), offered)),
                None => closed.0.push(ticket.model.clone()),
            }
        }
        None
    }

    /// A ticket has got its place.
    pub fn grant(&mut self, key: Key, now: Instant) -> Option<Ticket<T>> {
        self.take(key, Some(now))
    }

    /// How many wait for a model in this class and in higher ones.
    fn line(&self, class: usize, model: Option<&Arc<str>>) -> usize {
        let lane = self.lanes.get(&model.cloned());
        lane.map_or(0, |lane| lane.waiting.iter().take(class + 1).sum())
    }

    fn retry_after(&self, place: usize, model: Option<&Arc<str>>, now: Instant) -> u32 {
        let Some(lane) = self.lanes.get(&model.cloned()) else { return RETRY.0 as u32 };
        let seconds = place as f64 / lane.grants.per_second(now);
        seconds.ceil().clamp(RETRY.0, RETRY.1) as u32
    }

    /// The ticket that a newcomer may take the place of: the newest of the biggest tenant of the
    /// lowest class, if its class is lower, or its tenant has more places even after that.
    fn worse_than(&self, newcomer: &Ticket<T>) -> Option<Key> {
        let mut classes = self.classes.iter().enumerate().rev();
        let (class, (places, newest)) =
            classes.find_map(|(class, queue)| Some((class, queue.biggest()?)))?;
        let own = self.classes[newcomer.class].places_of(newcomer.tenant);
        let is_fairer = class == newcomer.class && own + 1 < places;
        (class > newcomer.class || is_fairer).then_some(Key(newest))
    }

    fn admit(&mut self, ticket: Ticket<T>, now: Instant) -> Key {
        let key = self.next;
        self.next += 1;
        let classes = self.classes.len();
        let lane = self.lanes.entry(ticket.model.clone());
        let lane =
            lane.or_insert_with(|| Lane { waiting: vec![0; classes], grants: Rate::begin(now) });
        lane.waiting[ticket.class] += 1;
        self.classes[ticket.class].push(ticket.tenant, key);
        self.tickets.insert(key, ticket);
        Key(key)
    }

    fn take(&mut self, Key(key): Key, granted: Option<Instant>) -> Option<Ticket<T>> {
        let ticket = self.tickets.remove(&key)?;
        let cost = granted.map(|_| ticket.tokens.max(1));
        self.classes[ticket.class].remove(ticket.tenant, key, cost);
        if let Some(lane) = self.lanes.get_mut(&ticket.model) {
            lane.waiting[ticket.class] -= 1;
            if let Some(now) = granted {
                lane.grants.add(now);
            }
            if lane.waiting.iter().all(|count| *count == 0) {
                self.lanes.remove(&ticket.model);
            }
        }
        Some(ticket)
    }
}

impl Closed {
    /// Whether there is no place for this model.
    pub fn has(&self, model: Option<&str>) -> bool {
        self.0.iter().any(|closed| closed.as_deref() == model)
    }
}
