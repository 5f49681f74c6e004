//! The writer of the response of a run.

use super::note::RunNote;
use super::registry::Registry;
use super::run::{End, Run, RunHead};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Writes the response of an engine into its run. Each run has one producer. Dropping the producer ends the
/// run.
#[derive(Debug)]
pub struct Producer {
    pub(super) registry: Arc<Registry>,
    pub(super) run: Arc<Run>,
    pub(super) has_ended: bool,
}

impl Producer {
    /// The result of the run so far, which the record of the request that began the run reads.
    pub fn note(&self) -> &Arc<RunNote> {
        &self.run.note
    }

    /// Whether the run must end because no client can get its response. A change wakes `waker`.
    pub fn poll_abandoned(&self, waker: &Waker) -> bool {
        let mut state = self.run.lock();
        state.producer = Some(waker.clone());
        state.is_abandoned
    }

    /// Whether the run accepts bytes now. A run that no longer keeps its response accepts bytes only
    /// when all readers have read the earlier bytes. [`Self::poll_abandoned`] must have been called
    /// with the waker of the task.
    pub fn poll_writable(&self) -> Poll<()> {
        let state = self.run.lock();
        if state.is_kept || state.is_all_read() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Publishes status and headers to all readers.
    pub fn set_head(&mut self, head: RunHead) {
        let mut state = self.run.lock();
        state.head = Some(Arc::new(head));
        state.wake_readers();
    }

    /// Writes bytes of the body. If a memory limit is reached, the run continues but drops the bytes that its
    /// readers have read.
    pub fn write(&mut self, data: &[u8]) {
        loop {
            let mut state = self.run.lock();
            if !state.is_kept {
                state.buffer.append_passing(data);
                return state.wake_readers();
            }
            let appended = state.buffer.append(data, &self.run.limits);
            let Err(limit) = appended else {
                return state.wake_readers();
            };
            drop(state);
            if !self.registry.evict_delivered(self.run.party, limit) {
                self.run.note.set(limit.into());
                self.registry.forget(&self.run);
            }
        }
    }

    /// Ends the run. `is_kept`: a returning client gets this response. If `false`, as after a failure, the run
    /// is removed, and a repetition of the request is executed again.
    pub fn end(mut self, end: End, is_kept: bool) {
        self.finish(end, is_kept);
    }

    fn finish(&mut self, end: End, is_kept: bool) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let mut state = self.run.lock();
        state.end(end);
        drop(state);
        if !is_kept {
            self.registry.forget(&self.run);
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.finish(End::Broken, false);
    }
}
