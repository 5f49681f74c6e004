//! A client's hold on the sequences that generate its answer. Dropping it before they are done
//! aborts them in the engine at once; that is how a disconnect frees the KV cache.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use super::engine::SequenceId;
use super::replica::Replica;
use super::wire::Progress;

/// How far the sequences of one request are. The engine's loop writes it, the connection reads it,
/// so nothing is queued for a client that reads slowly.
#[derive(Debug)]
pub(super) struct Counters {
    produced: Box<[AtomicU32]>,
    cached_tokens: AtomicU32,
    waker: AtomicWaker,
}

impl Counters {
    pub(super) fn new(choices: usize) -> Arc<Self> {
        let produced = (0..choices).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { produced, cached_tokens: 0.into(), waker: AtomicWaker::new() })
    }

    /// Notes that a choice has `tokens` tokens, and wakes the connection.
    pub(super) fn advance(&self, choice: usize, tokens: u32, cached_tokens: u32) {
        if choice == 0 {
            self.cached_tokens.store(cached_tokens, Ordering::Relaxed);
        }
        self.produced[choice].store(tokens, Ordering::Release);
        self.waker.wake();
    }
}

impl Progress for Counters {
    fn produced(&self, choice: usize) -> u32 {
        self.produced[choice].load(Ordering::Acquire)
    }

    fn cached_tokens(&self) -> u32 {
        self.cached_tokens.load(Ordering::Relaxed)
    }
}

/// The sequences of one request.
#[derive(Debug)]
pub(super) struct Generation {
    replica: Arc<Replica>,
    ids: Vec<SequenceId>,
    counters: Arc<Counters>,
}

impl Generation {
    pub(super) fn new(
        replica: Arc<Replica>,
        ids: Vec<SequenceId>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { replica, ids, counters }
    }

    /// How far it is. The task is woken when there is more.
    pub(super) fn progress(&self, context: &Context<'_>) -> &Counters {
        self.counters.waker.register(context.waker());
        &self.counters
    }

    /// Counts bytes of the answer that were handed to the connection.
    pub(super) fn count_bytes(&self, bytes: usize) {
        self.replica.count_bytes(bytes);
    }

    /// Waits until every sequence has the tokens it was asked for; the cached prompt tokens.
    pub(super) async fn finished(&self, wanted: &[u32]) -> u32 {
        poll_fn(|context| {
            let progress = self.progress(context);
            let mut choices = wanted.iter().enumerate();
            let done = choices.all(|(choice, &wanted)| progress.produced(choice) >= wanted);
            if done { Poll::Ready(progress.cached_tokens()) } else { Poll::Pending }
        })
        .await
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.replica.end(&self.ids);
    }
}
