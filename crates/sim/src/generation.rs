//! The handle of a request on the sequences that generate its response. If the handle is dropped before the
//! sequences have finished, the engine aborts them at once. In this way, a client disconnect frees KV blocks.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::engine::{SequenceId, SequenceTooLong};
use super::generation_progress::GenerationProgress;
use super::simulated_backend::{SimulatedBackend, SubmittedSequence};
use super::telemetry::RequestSpan;

/// The sequences of one request.
#[derive(Debug)]
pub(super) struct Generation {
    backend: Arc<SimulatedBackend>,
    sequence_ids: Vec<SequenceId>,
    progress: Arc<GenerationProgress>,
}

impl Generation {
    /// Submits the sequences of one request to the engine of a backend.
    pub(super) fn submit(
        backend: &Arc<SimulatedBackend>,
        requests: impl IntoIterator<Item = SubmittedSequence>,
        span: Option<RequestSpan>,
    ) -> Result<Self, SequenceTooLong> {
        let (sequence_ids, progress) = backend.submit(requests, span)?;
        Ok(Self {
            backend: Arc::clone(backend),
            sequence_ids,
            progress,
        })
    }

    /// Returns the progress. The next token wakes the task of `context`.
    pub(super) fn progress(&self, context: &Context<'_>) -> &GenerationProgress {
        self.progress.waker.register(context.waker());
        &self.progress
    }

    /// Waits until each sequence has produced its number of tokens in `token_counts`. Returns the number of
    /// cached prompt tokens.
    pub(super) async fn wait_until_finished(&self, token_counts: &[u32]) -> u32 {
        poll_fn(|context| {
            let progress = self.progress(context);
            let mut choices = token_counts.iter().enumerate();
            let is_done = choices.all(|(choice, &count)| progress.produced(choice) >= count);
            if is_done {
                Poll::Ready(progress.cached_tokens())
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.backend.end(&self.sequence_ids);
    }
}
