//! The readers of the response of a run.

use super::event_ids::RunId;
use super::note::RunOutcome;
use super::registry::Registry;
use super::run::{End, Run, RunHead};
use bytes::Bytes;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Reads the response of a run from its beginning. Dropping the reader detaches it from the run.
#[derive(Debug)]
pub struct Reader {
    pub(super) registry: Arc<Registry>,
    pub(super) run: Arc<Run>,
    pub(super) id: u64,
}

/// The result of [`Reader::poll_chunk`]: the next bytes of the body, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// Further bytes of the body.
    Data(Bytes),
    /// The body has ended.
    End(End),
}

impl Reader {
    /// The run to which event ids refer.
    pub fn run_id(&self) -> RunId {
        self.run.id
    }

    /// The head of the response. `None`: the run ended without a head. While the result is pending, the head or
    /// the end of the run wakes `waker`.
    pub fn poll_head(&mut self, waker: &Waker) -> Poll<Option<Arc<RunHead>>> {
        let mut state = self.run.lock();
        if state.head.is_some() || state.end.is_some() {
            return Poll::Ready(state.head.clone());
        }
        if let Some(reader) = state.readers.iter_mut().find(|reader| reader.id == self.id) {
            reader.waker = Some(waker.clone());
        }
        Poll::Pending
    }

    /// The next bytes of the body, or its end. While the result is pending, further bytes or the end of the
    /// body wake `waker`.
    pub fn poll_chunk(&mut self, waker: &Waker) -> Poll<Chunk> {
        let mut guard = self.run.lock();
        let state = &mut *guard;
        let Some(reader) = state.readers.iter_mut().find(|reader| reader.id == self.id) else {
            return Poll::Ready(Chunk::End(End::Broken));
        };
        let data = state.buffer.read(reader.position);
        if !data.is_empty() {
            let data = Bytes::copy_from_slice(data);
            reader.position += data.len() as u64;
            state.after_read();
            return Poll::Ready(Chunk::Data(data));
        }
        let Some(end) = state.end else {
            reader.waker = Some(waker.clone());
            return Poll::Pending;
        };
        let is_first = end == End::Whole && !std::mem::replace(&mut state.is_delivered, true);
        drop(guard);
        if is_first {
            self.registry.on_delivered(&self.run);
        }
        Poll::Ready(Chunk::End(end))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let may_go_on = self.run.lock().detach(self.id);
        if !may_go_on {
            self.run.note.set(RunOutcome::AbsentLimit);
            self.registry.forget(&self.run);
        }
    }
}
