//! Sends one request of a replay in real time when the request is due, and measures the response.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_bench::measurement::ResponseMeasurement;
use tokenweir_bench::sender::BenchRequestSender;
use tokenweir_protocol::clock;
use tokenweir_replay::prompt_synthesis::PromptSynthesizer;
use tokenweir_replay::results::ServedRequest;
use tokenweir_replay::trace::TraceRequest;
use tokio::sync::Semaphore;

/// Sends requests of a trace.
pub(super) struct RequestSender {
    pub(super) sender: BenchRequestSender,
    /// The requests of the trace.
    pub(super) jobs: Arc<[TraceRequest]>,
    /// Generates the prompts.
    pub(super) synthesis: PromptSynthesizer,
}

/// The result of one request of a replay.
#[derive(Debug)]
pub(super) struct ReplayedRequest {
    /// The response, or the kind of failure.
    pub(super) result: Result<ReplayedResponse, Cow<'static, str>>,
    /// Whether the request was delayed because no permit was free when it was due.
    pub(super) has_waited: bool,
    /// Time from the due time to the sending of the request.
    pub(super) send_delay: Duration,
}

/// The response to one request.
#[derive(Debug)]
pub(super) struct ReplayedResponse {
    /// The times, counted from the due time, and the token counts.
    pub(super) served: ServedRequest,
    /// Whether the client disconnected before the end, as recorded in the trace.
    pub(super) is_client_disconnect: bool,
    /// Whether the usage of the response reports cached tokens.
    pub(super) reports_cached_tokens: bool,
}

// === impl ReplayedRequest ===

impl ReplayedRequest {
    /// A failure without a response.
    pub(super) fn failed(kind: &'static str) -> Self {
        Self { result: Err(kind.into()), has_waited: false, send_delay: Duration::ZERO }
    }
}

// === impl RequestSender ===

impl RequestSender {
    /// Waits for a permit, sends a request that is due now, and reads the response. `number` is the
    /// index of the request in the trace.
    pub(super) async fn send_when_permitted(
        self: Arc<Self>,
        number: usize,
        due: Instant,
        permits: Arc<Semaphore>,
    ) -> ReplayedRequest {
        let has_waited = permits.available_permits() == 0;
        // `acquire` fails only if the semaphore is closed, which never happens.
        let _permit = permits.acquire().await;
        let send_delay = clock::now().saturating_duration_since(due);
        let result = match self.jobs.get(number) {
            Some(job) => self.send(job, number as u64, due).await,
            None => Err("defect".into()),
        };
        ReplayedRequest { result, has_waited, send_delay }
    }

    async fn send(
        &self,
        job: &TraceRequest,
        number: u64,
        due: Instant,
    ) -> Result<ReplayedResponse, Cow<'static, str>> {
        let body = self.sender.body(&self.synthesis.prompt(job, number), job);
        let send_delay_seconds = clock::now().saturating_duration_since(due).as_secs_f64();
        let measurement =
            self.sender.answer(job, body, None).await.map_err(|failure| failure.kind)?;
        let ResponseMeasurement { ttft, decode, input, cached, output, has_disconnected, .. } =
            measurement;
        let ttft = send_delay_seconds + ttft;
        let served = ServedRequest {
            ttft,
            decode,
            prompt: input,
            cached: cached.unwrap_or(0),
            output,
            ..ServedRequest::default()
        };
        Ok(ReplayedResponse {
            served,
            is_client_disconnect: has_disconnected,
            reports_cached_tokens: cached.is_some(),
        })
    }
}
