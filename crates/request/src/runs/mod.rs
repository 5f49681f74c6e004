//! Runs: requests to which their clients can return. A run has the state of a request that continues while its
//! client is disconnected, and the bytes that a returning client gets again.
//!
//! A request with an `Idempotency-Key` begins a run. A [`Producer`] writes the response of the engine into the
//! run, and each [`Reader`] reads it from its own position. A request that arrives again with the same key and
//! body attaches to the run as a further reader. A run without a reader is aborted when its window (the time in
//! which its client may return) is over, or when too many runs have none.
//!
//! The module has no I/O. The caller passes wakers, and passes the time to [`Registry::sweep`]. A thread that
//! needs the lock of the table of runs and the lock of a run takes the lock of the table first.

mod absence;
mod buffer;
mod digest;
mod entry;
mod event_ids;
mod note;
mod producer;
mod reader;
mod registry;
mod run;
#[cfg(test)]
mod simulation_tests;

pub use digest::{Digest, RunKey};
pub use entry::Entry;
pub use event_ids::{EventId, EventIds, RunId};
pub use note::{RunNote, RunOutcome};
pub use producer::Producer;
pub use reader::{Chunk, Reader};
pub use registry::Registry;
pub use run::{Arrival, End, RunHead, RunSettings};
