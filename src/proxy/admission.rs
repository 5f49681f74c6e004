//! The way to a place at a replica. While there is room a request gets one at once; while every
//! replica that could take it is past its high-water mark, it waits in the room, and whatever
//! makes room somewhere gives that place to the ticket that is first in line then.
//!
//! A place is handed over, not announced: one look under the lock of the room takes a lease and
//! sends it to its ticket. So no newcomer slips in between, nobody is woken for nothing, and the
//! replica is chosen as late as it can be. A client that leaves drops its ticket, and what has been
//! sent to it goes back with the lease.

use crate::backend::Lease;
use crate::backend::pool::{Need, Pool};
use arc_swap::ArcSwapOption;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_core::admission::{
    Classes, Closed, DEFAULT_CLASS, Entry, Key, Refused, Room, Ticket,
};
use tokenweir_core::clock;
use tokenweir_core::error::Error;
use tokenweir_core::record::{Decision, Tier, Timings};
use tokenweir_core::routing::Prompt;
use tokenweir_core::routing::high_water::Marks;
use tokio::sync::oneshot;

/// Who may go to a replica now, and who waits.
pub struct Admission {
    pool: Arc<Pool>,
    /// `None`: nobody waits who has not begun to.
    settings: ArcSwapOption<Settings>,
    /// Keyed anew in each process: what it hashes are secrets.
    tenants: RandomState,
    room: Mutex<Room<Call>>,
}

/// When requests wait, how many, and for how long.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A replica past one of them gets no new requests.
    pub marks: Marks,
    /// Most requests that wait.
    pub places: usize,
    /// How long each may.
    pub max_wait: Duration,
    /// Tiers, from the one that goes first to the one that goes last.
    pub classes: Classes,
    /// The header that names the tenant.
    pub tenant_header: Option<HeaderName>,
}

/// Who asks for a place.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    class: usize,
    tenant: u64,
}

/// What a request counts for among those of its class: tokens of an answer, and bytes of JSON for
/// a token of prompt, roughly.
const EXPECTED_TOKENS: u64 = 256;
const BYTES_PER_TOKEN: u64 = 4;

/// A replica's place, and why it is there.
type Place = (Lease, Arc<Decision>);

/// What a ticket is answered with, and to whom.
struct Call {
    prompt: Arc<Prompt>,
    is_stream: bool,
    session: Option<u64>,
    seed: u64,
    answer: oneshot::Sender<Result<Place, Error>>,
}

/// What came of a request that could not go at once.
enum Entered {
    /// It could after all.
    Placed(Place),
    /// It has a ticket.
    Waits(Key),
}

/// A ticket in the room, until it is dropped.
struct Waiting<'a> {
    admission: &'a Admission,
    key: Key,
    answer: oneshot::Receiver<Result<Place, Error>>,
}

// === impl Admission ===

impl Admission {
    /// Admission to the replicas of a pool. `None`: everybody goes at once.
    pub fn new(pool: Arc<Pool>, settings: Option<Settings>) -> Self {
        let (places, classes) = settings
            .as_ref()
            .map_or((0, 1), |settings| (settings.places, settings.classes.names().len()));
        let room = Mutex::new(Room::new(places, classes));
        let settings = ArcSwapOption::from_pointee(settings);
        Self { pool, settings, tenants: RandomState::new(), room }
    }

    /// Has other settings from now on. Whoever waits goes on to wait, in the class of the same name
    /// or in that of all others; with `None`, until the next place.
    pub fn change(&self, settings: Option<Settings>) {
        self.with_room(|room| {
            let before = self.settings.load_full();
            if let Some(after) = &settings {
                let names = before.as_ref().map(|before| before.classes.names());
                let of = |class: usize| {
                    let name = names.and_then(|names| names.get(class));
                    after.classes.of(name.map_or(DEFAULT_CLASS, |name| name))
                };
                room.change(after.places, after.classes.names().len(), of);
            }
            self.settings.store(settings.map(Arc::new));
        });
        // Other marks may leave room.
        self.pool.vacancies().tell();
    }

    /// How many wait in each class, the highest first. Nothing, if nobody ever waits.
    pub fn waiting(&self) -> Vec<(Arc<str>, usize)> {
        let Some(settings) = self.settings.load_full() else { return Vec::new() };
        let names = settings.classes.names().iter().cloned();
        names.zip(self.room().waiting()).collect()
    }

    /// Who a request is of: its tenant is known by its key, or named by the configured header, or
    /// by the client's token, or by its address.
    pub fn caller(
        &self,
        headers: &HeaderMap,
        client: IpAddr,
        tier: &Tier,
        tenant: Option<&str>,
    ) -> Caller {
        let settings = self.settings.load();
        let Some(settings) = &*settings else { return Caller { class: 0, tenant: 0 } };
        let class = settings.classes.of(tier.as_str());
        if let Some(tenant) = tenant {
            return Caller { class, tenant: self.tenants.hash_one(tenant) };
        }
        let named = settings.tenant_header.as_ref().and_then(|name| headers.get(name));
        let tenant = match named.or_else(|| headers.get(AUTHORIZATION)) {
            Some(name) => self.tenants.hash_one(name.as_bytes()),
            None => self.tenants.hash_one(client),
        };
        Caller { class, tenant }
    }

    /// A place at a replica, now or when there is one.
    ///
    /// Fails if no replica serves the model, if the room is full, if the request has to make room
    /// for a better one, and if it has waited for too long.
    pub async fn admit(
        &self,
        need: Need<'_>,
        caller: Caller,
        timings: &mut Timings,
    ) -> Result<Place, Error> {
        let now = clock::now();
        let settings = self.settings.load_full();
        let Some(settings) = settings.as_deref() else { return self.pool.lease(need, &[], now) };
        if self.pool.vacancies().waiting() == 0
            && let Some(place) = self.pool.lease_below(&settings.marks, need, now)?
        {
            return Ok(place);
        }
        let (sender, answer) = oneshot::channel();
        let ticket = Ticket {
            class: caller.class,
            tenant: caller.tenant,
            model: need.model.map(Into::into),
            tokens: EXPECTED_TOKENS + need.prompt.bytes / BYTES_PER_TOKEN,
            deadline: now + settings.max_wait,
            payload: Call {
                prompt: need.prompt.clone(),
                is_stream: need.is_stream,
                session: need.session,
                seed: need.seed,
                answer: sender,
            },
        };
        let entered = self.with_room(|room| {
            // Those who wait go first; what none of them can use is for newcomers.
            if !self.serve(room, &settings.marks, now).has(need.model)
                && let Some(place) = self.pool.lease_below(&settings.marks, need, now)?
            {
                return Ok(Entered::Placed(place));
            }
            enter(room, ticket, now).map(Entered::Waits)
        })?;
        let key = match entered {
            Entered::Placed(place) => return Ok(place),
            Entered::Waits(key) => key,
        };
        let mut waiting = Waiting { admission: self, key, answer };
        timings.queued = Some(now);
        // What became free before this ticket was there has not been told to anybody.
        self.with_room(|room| self.serve(room, &settings.marks, now));
        let place = waiting.place(settings, now + settings.max_wait).await;
        timings.dequeued = Some(clock::now());
        place
    }

    /// Gives places that become free to those who wait, for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.pool.vacancies().changed().await;
            let settings = self.settings.load_full();
            let marks = settings.map(|settings| settings.marks).unwrap_or_default();
            self.with_room(|room| self.serve(room, &marks, clock::now()));
        }
    }

    /// Gives every place that there is to the first in line who can use it. The models of those
    /// who wait on have none.
    fn serve(&self, room: &mut Room<Call>, marks: &Marks, now: Instant) -> Closed {
        let mut closed = Closed::default();
        let mut offer =
            |ticket: &Ticket<Call>| self.pool.lease_below(marks, need(ticket), now).transpose();
        while let Some((key, place)) = room.first(now, &mut closed, &mut offer) {
            let ticket = if place.is_ok() { room.grant(key, now) } else { room.leave(key) };
            if let Some(ticket) = ticket {
                ticket.payload.answer(place);
            }
        }
        closed
    }

    fn with_room<R>(&self, work: impl FnOnce(&mut Room<Call>) -> R) -> R {
        let mut room = self.room();
        let result = work(&mut room);
        self.pool.vacancies().set_waiting(room.len());
        result
    }

    fn room(&self) -> MutexGuard<'_, Room<Call>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets a ticket in, and turns away whoever has to make room for it.
fn enter(room: &mut Room<Call>, ticket: Ticket<Call>, now: Instant) -> Result<Key, Error> {
    match room.enter(ticket, now) {
        Entry::Waits(key) => Ok(key),
        Entry::InsteadOf(key, Refused { ticket: worse, retry_after }) => {
            worse.payload.answer(Err(Error::Shed { retry_after }));
            Ok(key)
        }
        Entry::Full(Refused { retry_after, .. }) => Err(Error::Saturated { retry_after }),
    }
}

fn need(ticket: &Ticket<Call>) -> Need<'_> {
    let Call { prompt, is_stream, session, seed, .. } = &ticket.payload;
    Need {
        model: ticket.model.as_deref(),
        prompt,
        is_stream: *is_stream,
        session: *session,
        seed: *seed,
    }
}

// === impl Call ===

impl Call {
    /// Nobody may be there any more: then the place goes back.
    fn answer(self, place: Result<Place, Error>) {
        drop(self.answer.send(place));
    }
}

// === impl Waiting ===

impl Waiting<'_> {
    /// The place, if there is one before the deadline.
    async fn place(&mut self, settings: &Settings, deadline: Instant) -> Result<Place, Error> {
        if let Ok(answer) = tokio::time::timeout_at(deadline.into(), &mut self.answer).await {
            return answer.unwrap_or(Err(Error::Internal));
        }
        match self.admission.with_room(|room| room.refuse(self.key, clock::now())) {
            Some(Refused { retry_after, .. }) => {
                Err(Error::QueueTimeout { waited: settings.max_wait, retry_after })
            }
            // Its place came in the same moment.
            None => self.answer.try_recv().unwrap_or(Err(Error::Internal)),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Gone already, if it was answered.
        self.admission.with_room(|room| room.leave(self.key));
    }
}
