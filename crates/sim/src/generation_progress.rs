//! The progress of the sequences of one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::task::AtomicWaker;

/// Number of tokens produced by each sequence of one request. The engine loop writes the numbers, and the task
/// of the connection reads them. Tokens are not queued, so a slow client uses no memory.
#[derive(Debug)]
pub(super) struct GenerationProgress {
    produced_tokens: Box<[AtomicU32]>,
    cached_tokens: AtomicU32,
    /// Wakes the task of the connection.
    pub(super) waker: AtomicWaker,
}

impl GenerationProgress {
    pub(super) fn new(choices: usize) -> Arc<Self> {
        let produced_tokens = (0..choices).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self {
            produced_tokens,
            cached_tokens: 0.into(),
            waker: AtomicWaker::new(),
        })
    }

    /// Sets the number of tokens produced for a choice, and wakes the task of the connection. For the whole
    /// request, the cached tokens of choice 0 count.
    pub(super) fn advance(&self, choice: usize, tokens: u32, cached_tokens: u32) {
        if choice == 0 {
            self.cached_tokens.store(cached_tokens, Ordering::Relaxed);
        }
        self.produced_tokens[choice].store(tokens, Ordering::Release);
        self.waker.wake();
    }

    /// Number of output tokens produced so far for one choice.
    pub(super) fn produced(&self, choice: usize) -> u32 {
        self.produced_tokens[choice].load(Ordering::Acquire)
    }

    /// Number of prompt tokens found in the prefix cache.
    pub(super) fn cached_tokens(&self) -> u32 {
        self.cached_tokens.load(Ordering::Relaxed)
    }
}
