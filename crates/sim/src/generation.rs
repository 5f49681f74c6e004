//! The handle of a request on the sequences that generate its response. Dropping the handle before
//! the sequences are finished aborts them in the engine at once. This is how a client disconnect
//! frees KV blocks.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;

use super::engine::SequenceId;
use super::simulated_backend::SimulatedBackend;
use super::wire::TokenProgress;

/// Number of tokens produced by each sequence of one request. The engine loop writes it and the
/// connection reads it, so a slow client does not make the engine queue tokens.
#[derive(Debug)]
pub(super) struct GenerationProgress {
    produced_tokens: Box<[AtomicU32]>,
    cached_tokens: AtomicU32,
    waker: AtomicWaker,
}

impl GenerationProgress {
    pub(super) fn new(choices: usize) -> Arc<Self> {
        let produced_tokens = (0..choices).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self { produced_tokens, cached_tokens: 0.into(), waker: AtomicWaker::new() })
    }

    /// Sets the number of tokens of a choice and wakes the connection.
    pub(super) fn advance(&self, choice: usize, tokens: u32, cached_tokens: u32) {
        if choice == 0 {
            self.cached_tokens.store(cached_tokens, Ordering::Relaxed);
        }
        self.produced_tokens[choice].store(tokens, Ordering::Release);
        self.waker.wake();
    }
}

impl TokenProgress for GenerationProgress {
    fn produced(&self, choice: usize) -> u32 {
        self.produced_tokens[choice].load(Ordering::Acquire)
    }

    fn cached_tokens(&self) -> u32 {
        self.cached_tokens.load(Ordering::Relaxed)
    }
}

/// The sequences of one request.
#[derive(Debug)]
pub(super) struct Generation {
    backend: Arc<SimulatedBackend>,
    sequence_ids: Vec<SequenceId>,
    progress: Arc<GenerationProgress>,
}

impl Generation {
    pub(super) fn new(
        backend: Arc<SimulatedBackend>,
        sequence_ids: Vec<SequenceId>,
        progress: Arc<GenerationProgress>,
    ) -> Self {
        Self { backend, sequence_ids, progress }
    }

    /// Returns the progress and registers the task, which is woken at the next token.
    pub(super) fn progress(&self, context: &Context<'_>) -> &GenerationProgress {
        self.progress.waker.register(context.waker());
        &self.progress
    }

    /// Counts bytes of the response that were handed to the connection.
    pub(super) fn count_bytes(&self, bytes: usize) {
        self.backend.count_bytes(bytes);
    }

    /// Waits until every sequence has its `wanted` number of tokens. Returns the number of cached
    /// prompt tokens.
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
        self.backend.end(&self.sequence_ids);
    }
}
