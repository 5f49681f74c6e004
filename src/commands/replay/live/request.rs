//! Sending of one request of a real-time replay when it is due, and its result.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_bench::measurement::ResponseMeasurement;
use tokenweir_bench::sender::BenchRequestSender;
use tokenweir_core::clock;
use tokenweir_lab::prompt_synthesis::PromptSynthesizer;
use tokenweir_lab::results::ServedRequest;
use tokenweir_lab::trace::TraceRequest;
use tokio::sync::Semaphore;

/// Sends any request of a trace.
pub(super) struct RequestSender {
    pub(super) sender: BenchRequestSender,
    pub(super) jobs: Arc<[TraceRequest]>,
    pub(super) synthesis: PromptSynthesizer,
}

/// The result of one request.
#[derive(Debug)]
pub(super) struct ReplayedRequest {
    /// The response, or the kind of failure.
    pub(super) result: Result<ReplayedAnswer, Cow<'static, str>>,
    /// Whether it was delayed because no permit was free when it was due.
    pub(super) has_waited: bool,
    /// Time from due to sent.
    pub(super) late: Duration,
}

/// The response to one request.
#[derive(Debug)]
pub(super) struct ReplayedAnswer {
    /// Times from the due time on, and token counts.
    pub(super) served: ServedRequest,
    /// Whether the client disconnected before the end, as recorded in the trace.
    pub(super) is_client_disconnect: bool,
    /// Whether its usage reports cached tokens.
    pub(super) reports_cached_tokens: bool,
}

// === impl Ended ===

impl ReplayedRequest {
    /// A failure without a response.
    pub(super) fn failed(kind: &'static str) -> Self {
        Self { result: Err(kind.into()), has_waited: false, late: Duration::ZERO }
    }
}

// === impl Requester ===

impl RequestSender {
    /// Sends a request that is due now, as soon as a permit is free, and reads the response.
    pub(super) async fn ended(
        self: Arc<Self>,
        number: usize,
        due: Instant,
        permits: Arc<Semaphore>,
    ) -> ReplayedRequest {
        let has_waited = permits.available_permits() == 0;
        // `acquire` fails only if the semaphore is closed, which never happens.
        let _permit = permits.acquire().await;
        let late = clock::now().saturating_duration_since(due);
        let result = match self.jobs.get(number) {
            Some(job) => self.send(job, number as u64, due).await,
            None => Err("defect".into()),
        };
        ReplayedRequest { result, has_waited, late }
    }

    async fn send(
        &self,
        job: &TraceRequest,
        number: u64,
        due: Instant,
    ) -> Result<ReplayedAnswer, Cow<'static, str>> {
        let body = self.sender.body(&self.synthesis.prompt(job, number), job);
        let begun = clock::now().saturating_duration_since(due).as_secs_f64();
        let answer = self.sender.answer(job, body, None).await.map_err(|failure| failure.kind)?;
        let ResponseMeasurement {
            ttft,
            decode,
            input,
            cached,
            output,
            has_disconnected: has_left,
            ..
        } = answer;
        let ttft = begun + ttft;
        let served = ServedRequest {
            ttft,
            decode,
            prompt: input,
            cached: cached.unwrap_or(0),
            output,
            ..ServedRequest::default()
        };
        Ok(ReplayedAnswer {
            served,
            is_client_disconnect: has_left,
            reports_cached_tokens: cached.is_some(),
        })
    }
}
