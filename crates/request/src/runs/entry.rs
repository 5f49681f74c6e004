//! The arrival of a request with an `Idempotency-Key`. The request begins a run, or attaches to one.

use super::absence::Absence;
use super::buffer::Buffer;
use super::note::RunOutcome;
use super::producer::Producer;
use super::reader::Reader;
use super::registry::Registry;
use super::run::RunSettings;
use super::run::{Arrival, Run};
use std::sync::Arc;
use tokenweir_protocol::limits::client_network;
use tokenweir_protocol::limits::memory_charge::Charge;

/// The result of the arrival of a request with an `Idempotency-Key`.
#[derive(Debug)]
pub enum Entry {
    /// No run has this `Idempotency-Key`, so the request begins one. The producer writes the
    /// response of the run, and the reader reads it for this request.
    Begun(Producer, Reader),
    /// The request attaches to the run of an earlier request: the reader reads the response of that
    /// request.
    Attached(Reader),
    /// The client used the `Idempotency-Key` for a request with another path, query, content type or body.
    OtherRequest,
    /// The client has events of a run that is not the run of this `Idempotency-Key`, or that no longer exists.
    UnknownEvent,
    /// The run of this `Idempotency-Key` already has the maximum number of readers.
    TooManyReaders,
    /// There is no run with this `Idempotency-Key`, and the request may not begin one.
    Unknown,
    /// No run was begun, because a memory limit is reached. The client cannot return to the request.
    OverLimit(RunOutcome),
}

/// Memory that is charged for a run besides its body, in bytes: its entry in the table, its head and
/// its task.
pub(super) const RUN_BYTES: usize = 8 << 10;

impl Registry {
    /// Attaches a request to the run of its `Idempotency-Key`, or begins a run.
    pub fn enter(self: &Arc<Self>, arrival: &Arrival, settings: &RunSettings) -> Entry {
        let mut table = self.lock();
        if let Some(run) = table.runs.get(&arrival.key) {
            if run.request != arrival.request {
                return Entry::OtherRequest;
            }
            if arrival.had_events_of.is_some_and(|id| id != run.id) {
                return Entry::UnknownEvent;
            }
            let Some(reader) = self.attach(run) else {
                return Entry::TooManyReaders;
            };
            run.note.set(RunOutcome::Returned);
            return Entry::Attached(reader);
        }
        if arrival.had_events_of.is_some() {
            return Entry::UnknownEvent;
        }
        if !arrival.may_begin {
            return Entry::Unknown;
        }
        let limits = settings.memory_limits();
        let owner = table.parties.entry(arrival.party).or_default();
        let of_party = Charge::new(owner.absent.clone(), self.absent.clone());
        let mut charge = Charge::new(owner.used.clone(), self.used.clone());
        while let Err(limit) = charge.add(RUN_BYTES, &limits) {
            if !table.evict_delivered(arrival.party, limit) {
                return Entry::OverLimit(limit.into());
            }
        }
        let network = table
            .networks
            .entry(client_network(arrival.client))
            .or_default();
        let absence = Absence::new(arrival.places, of_party, network.clone());
        let run = Arc::new(Run::new(arrival, settings, Buffer::new(charge), absence));
        let Some(reader) = self.attach(&run) else {
            return Entry::TooManyReaders;
        };
        table.runs.insert(arrival.key, run.clone());
        Entry::Begun(
            Producer {
                registry: self.clone(),
                run,
                has_ended: false,
            },
            reader,
        )
    }

    fn attach(self: &Arc<Self>, run: &Arc<Run>) -> Option<Reader> {
        let id = run.lock().attach()?;
        Some(Reader {
            registry: self.clone(),
            run: run.clone(),
            id,
        })
    }
}
