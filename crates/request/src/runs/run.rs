//! One run: its response so far, its readers, and the window in which its client may return.

use super::absence::Absence;
use super::buffer::Buffer;
use super::digest::{Digest, RunKey};
use super::event_ids::RunId;
use super::note::RunNote;
use http::{HeaderMap, StatusCode};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokenweir_protocol::limits::Party;
use tokenweir_protocol::limits::memory_charge::MemoryLimits;
use tokenweir_protocol::mutex::lock;

/// How long runs wait for their clients, and how much memory runs take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSettings {
    /// How long a run without a reader, open or ended, waits for its client to return.
    pub window: Duration,
    /// Maximum memory of all runs together, in bytes.
    pub memory: usize,
}

/// The runs of one party may use the total memory divided by this number.
const PARTY_DIVISOR: usize = 2;
/// One run may use the total memory divided by this number.
const RUN_DIVISOR: usize = 16;

/// The arrival of a request with an `Idempotency-Key`. The request begins a run, or attaches to the run of an
/// earlier request.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The client and the `Idempotency-Key` of the request.
    pub key: RunKey,
    /// A digest of the path, query, content type and body of the request.
    pub request: Digest,
    /// The party to which the memory of the run and its place without a client are charged.
    pub party: Party,
    /// The address at the other end of the connection.
    pub client: IpAddr,
    /// The id of the run that the request begins.
    pub new_id: RunId,
    /// The run of which the client has events. `None`: the client has no events.
    pub had_events_of: Option<RunId>,
    /// Whether the request may begin a run. A request may always attach to an existing run.
    pub may_begin: bool,
    /// Maximum number of open requests of the gateway.
    pub places: usize,
}

/// How the response of a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The response had its regular end.
    Whole,
    /// The response had its regular end, but the request failed: with an error status, an error event, or a
    /// stream that ended too early.
    Failed,
    /// The connection of the response broke, or the gateway ended the response.
    Broken,
}

/// The response head of a run: a request to which the client can return after a lost connection.
#[derive(Debug)]
pub struct RunHead {
    /// The HTTP status of the response.
    pub status: StatusCode,
    /// The headers for each reader.
    pub headers: HeaderMap,
    /// The length of the body. `None`: the length is not known in advance.
    pub length: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) key: RunKey,
    pub(super) id: RunId,
    /// The party to which the memory of the run is charged.
    pub(super) party: Party,
    pub(super) request: Digest,
    pub(super) limits: MemoryLimits,
    pub(super) window: Duration,
    pub(super) note: Arc<RunNote>,
    state: Mutex<RunState>,
}

#[derive(Debug)]
pub(super) struct RunState {
    /// The head of the response. `None`: the response has not begun.
    pub(super) head: Option<Arc<RunHead>>,
    pub(super) buffer: Buffer,
    /// The permit that an open run needs while it has no reader.
    absence: Absence,
    /// How the response ended. `None`: the run is open.
    pub(super) end: Option<End>,
    pub(super) readers: Vec<ReaderState>,
    /// Time of the first sweep that found the run without a reader. `None`: the run has readers, or no sweep
    /// followed the departure of the last reader.
    pub(super) idle_since: Option<Instant>,
    /// Whether the run keeps the bytes that its readers have read. While this is true, the run is in the table.
    pub(super) is_kept: bool,
    /// Whether the producer must end, because no client can get the response any more.
    pub(super) is_abandoned: bool,
    /// Whether a reader has got the whole response.
    pub(super) is_delivered: bool,
    pub(super) producer: Option<Waker>,
    next_reader: u64,
}

#[derive(Debug)]
pub(super) struct ReaderState {
    pub(super) id: u64,
    /// Position in the body of the next byte that the reader reads.
    pub(super) position: u64,
    pub(super) waker: Option<Waker>,
}

/// Maximum number of readers of a run. A client that returns often can have several readers at once, because a
/// broken connection stays open until a write fails.
pub(super) const MAX_READERS: usize = 8;

impl RunSettings {
    /// The memory limits, in bytes: of one run, of the runs of one party, and of all runs.
    pub fn memory_limits(&self) -> MemoryLimits {
        let total = self.memory;
        MemoryLimits {
            one: total / RUN_DIVISOR,
            party: total / PARTY_DIVISOR,
            total,
        }
    }
}

impl Run {
    pub(super) fn new(
        arrival: &Arrival,
        settings: &RunSettings,
        buffer: Buffer,
        absence: Absence,
    ) -> Self {
        let state = RunState {
            head: None,
            buffer,
            absence,
            end: None,
            readers: Vec::new(),
            idle_since: None,
            is_kept: true,
            is_abandoned: false,
            is_delivered: false,
            producer: None,
            next_reader: 0,
        };
        Self {
            key: arrival.key,
            id: arrival.new_id,
            party: arrival.party,
            request: arrival.request,
            limits: settings.memory_limits(),
            window: settings.window,
            note: Arc::default(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RunState> {
        lock(&self.state)
    }
}

impl RunState {
    /// Adds a reader at the beginning of the response and returns its id. `None`: the run already has
    /// [`MAX_READERS`] readers.
    pub(super) fn attach(&mut self) -> Option<u64> {
        if self.readers.len() >= MAX_READERS {
            return None;
        }
        let id = self.next_reader;
        self.next_reader += 1;
        self.readers.push(ReaderState {
            id,
            position: 0,
            waker: None,
        });
        self.idle_since = None;
        self.absence.free();
        Some(id)
    }

    /// Removes a reader. The removal of the last reader abandons a run that keeps nothing. Returns whether the
    /// run may continue: an open run without a reader needs a permit.
    pub(super) fn detach(&mut self, id: u64) -> bool {
        self.readers.retain(|reader| reader.id != id);
        self.after_read();
        let needs_place = self.readers.is_empty() && self.end.is_none() && self.is_kept;
        !needs_place || self.absence.take().is_ok()
    }

    /// Ends the run, which gets no further bytes.
    pub(super) fn end(&mut self, end: End) {
        self.end = Some(end);
        self.absence.free();
        self.wake_readers();
    }

    /// From now on, the run drops bytes that all readers have read, and a returning client cannot attach.
    pub(super) fn stop_keeping(&mut self) {
        self.is_kept = false;
        self.absence.free();
        self.after_read();
    }

    /// Releases the bytes that no reader needs any more, if the run keeps nothing.
    pub(super) fn after_read(&mut self) {
        if self.is_kept {
            return;
        }
        let needed = self.readers.iter().map(|reader| reader.position).min();
        self.buffer
            .release_before(needed.unwrap_or(self.buffer.end));
        if self.readers.is_empty() && self.end.is_none() {
            self.is_abandoned = true;
        }
        if self.is_abandoned || self.is_all_read() {
            self.producer.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Whether each reader has read all bytes so far.
    pub(super) fn is_all_read(&self) -> bool {
        self.readers
            .iter()
            .all(|reader| reader.position == self.buffer.end)
    }

    pub(super) fn wake_readers(&mut self) {
        self.readers
            .iter_mut()
            .filter_map(|reader| reader.waker.take())
            .for_each(Waker::wake);
    }

    /// Whether the window of the run is over at `now`. The window begins when a sweep finds no reader.
    pub(super) fn has_expired(&mut self, window: Duration, now: Instant) -> bool {
        if !self.readers.is_empty() {
            return false;
        }
        now.saturating_duration_since(*self.idle_since.get_or_insert(now)) >= window
    }
}
