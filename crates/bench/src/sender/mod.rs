//! Sends benchmark requests with generated prompts and measures the streamed responses with the
//! gateway's own response observer.

mod target_client;

pub use target_client::{TargetClient, TargetError};

use super::measurement::{RequestFailure, ResponseMeasurement};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Collected, Limited};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::headers::media_type;
use tokenweir_core::observe::ResponseObserver;
use tokenweir_core::openai::Api;
use tokenweir_core::record::{ObservedResponse, Timings};
use tokenweir_lab::trace::TraceRequest;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_net::client::{HttpClient, SendError};
use tokenweir_net::idle_pool::IdlePool;

/// Sends requests to one server.
#[derive(Debug)]
pub struct BenchRequestSender {
    /// The client for this server.
    pub asker: TargetClient,
    /// The model name in requests.
    pub model: String,
    /// The API of the requests.
    pub shape: RequestShape,
    /// Maximum time from sending a request to the end of its response.
    pub timeout: Duration,
}

/// The API of the requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestShape {
    /// `/v1/completions`.
    #[default]
    Completions,
    /// `/v1/chat/completions`, with one message.
    Chat,
}

/// The default header with the session id.
const SESSION_ID_HEADER: HeaderName = HeaderName::from_static("x-session-id");
/// The header with the request id.
const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// A client that disconnects requests this many tokens more than it reads, so that there is
/// generation to abort.
const DISCONNECT_EXTRA_TOKENS: u32 = 32;
/// Maximum number of retries after the server closed an idle connection.
const MAX_STALE_RETRIES: u32 = 3;
/// Maximum number of bytes read from an error response.
const MAX_ERROR_BYTES: usize = 16 << 10;
/// Maximum number of recorded gaps per response. A server can send without end.
const MAX_RECORDED_GAPS: usize = 1 << 17;

/// The observation of one stream.
struct ObservedStream {
    observed: ObservedResponse,
    timings: Timings,
    gaps: Vec<f64>,
    has_disconnected: bool,
}

impl BenchRequestSender {
    /// Builds the body of a request.
    pub fn body(&self, prompt: &str, job: &TraceRequest) -> Bytes {
        let min_tokens = job
            .disconnect_after_tokens
            .map_or(0, |after| after.saturating_add(DISCONNECT_EXTRA_TOKENS));
        let mut body = serde_json::json!({
            "model": self.model,
            "max_tokens": job.output_tokens.max(min_tokens),
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        match self.shape {
            RequestShape::Completions => body["prompt"] = prompt.into(),
            RequestShape::Chat => {
                body["messages"] = serde_json::json!([{ "role": "user", "content": prompt }]);
            }
        }
        body.to_string().into()
    }

    /// Sends a request and reads its response to the end, or until the client disconnects as
    /// recorded in the trace.
    pub async fn answer(
        &self,
        job: &TraceRequest,
        body: Bytes,
        id: Option<&str>,
    ) -> Result<ResponseMeasurement, RequestFailure> {
        let sent = clock::now();
        let answer =
            tokio::time::timeout(self.timeout, self.measure_without_timeout(job, body, id, sent));
        answer.await.unwrap_or_else(|_| Err("timeout".into()))
    }

    async fn measure_without_timeout(
        &self,
        job: &TraceRequest,
        body: Bytes,
        id: Option<&str>,
        sent: Instant,
    ) -> Result<ResponseMeasurement, RequestFailure> {
        let response = self.send(job, body, id).await.map_err(|error| RequestFailure {
            kind: error.reason().into(),
            message: Some(error.to_string()),
        })?;
        let status = response.status();
        if !status.is_success() {
            let message = Limited::new(response.into_body(), MAX_ERROR_BYTES).collect().await.ok();
            let message =
                message.map(Collected::to_bytes).as_deref().and_then(target_client::message);
            return Err(RequestFailure {
                kind: format!("status_{}", status.as_u16()).into(),
                message,
            });
        }
        measure_response(self.read(response, job, sent).await?, job)
    }

    async fn read(
        &self,
        response: Response<BackendBody>,
        job: &TraceRequest,
        sent: Instant,
    ) -> Result<ObservedStream, RequestFailure> {
        let mut observer = ResponseObserver::new(self.shape.api());
        observer.on_head(media_type(response.headers()), false);
        let mut timings = Timings::begin(sent);
        let mut body = response.into_body();
        let (mut gaps, mut has_disconnected) = (Vec::new(), false);
        while !has_disconnected && let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| RequestFailure::from("broken"))?;
            if let Some(data) = frame.data_ref() {
                let before = observer.observed().inter_chunk_latency.count();
                let arrival = observer.on_data(data, clock::now(), &mut timings);
                let added = observer.observed().inter_chunk_latency.count() - before;
                // Events from one read have the same time: only the first of them has a gap.
                let added_gaps = (MAX_RECORDED_GAPS - gaps.len()).min(added as usize);
                let longest = arrival.gap.unwrap_or_default().as_secs_f64();
                let others = std::iter::repeat_n(0.0, added_gaps.saturating_sub(1));
                gaps.extend(std::iter::once(longest).chain(others).take(added_gaps));
            }
            let tokens = observer.observed().estimated_tokens;
            has_disconnected = timings.first_output.is_some()
                && job.disconnect_after_tokens.is_some_and(|after| tokens >= after.into());
        }
        Ok(ObservedStream { observed: observer.into_observed(), timings, gaps, has_disconnected })
    }

    /// Retries if the server had already closed the idle connection. Such a close is no failure.
    async fn send(
        &self,
        job: &TraceRequest,
        body: Bytes,
        id: Option<&str>,
    ) -> Result<Response<BackendBody>, SendError> {
        for _ in 0..MAX_STALE_RETRIES {
            match self.asker.send(self.request(job, body.clone(), id)).await {
                Err(SendError::StaleConnection { .. }) => {}
                result => return result,
            }
        }
        self.asker.send(self.request(job, body, id)).await
    }

    fn request(&self, job: &TraceRequest, body: Bytes, id: Option<&str>) -> Request<Bytes> {
        let mut request = self.asker.request(&PathAndQuery::from_static(self.shape.path()), body);
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let session = job.session.and_then(|id| HeaderValue::from_str(&format!("{id:x}")).ok());
        headers.extend(session.map(|session| (SESSION_ID_HEADER, session)));
        let id = id.and_then(|id| HeaderValue::from_str(id).ok());
        headers.extend(id.map(|id| (REQUEST_ID_HEADER, id)));
        request
    }
}

/// Computes the measurements of a stream. Fails if the stream is not a complete response.
fn measure_response(
    streamed: ObservedStream,
    job: &TraceRequest,
) -> Result<ResponseMeasurement, RequestFailure> {
    let ObservedStream { observed, timings, gaps, has_disconnected } = streamed;
    let is_whole = observed.is_complete && observed.finish_reasons.iter().any(Option::is_some);
    // Tokens can have no text, even all tokens of a response.
    let first = timings.first_output.or(timings.first_event);
    let Some(first) = first.filter(|_| observed.is_stream) else { return Err("no_stream".into()) };
    if observed.error.is_some() {
        return Err("stream_error".into());
    }
    if !is_whole && !has_disconnected {
        return Err("truncated".into());
    }
    let last = timings.last_output.unwrap_or(first);
    let tokens = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let usage = &observed.usage;
    Ok(ResponseMeasurement {
        ttft: first.saturating_duration_since(timings.accepted).as_secs_f64(),
        decode: last.saturating_duration_since(first).as_secs_f64(),
        gaps,
        input: usage.input.map_or(job.prompt_tokens, tokens),
        cached: usage.cached.map(tokens),
        output: tokens(usage.output.unwrap_or(observed.estimated_tokens)),
        is_counted: usage.output.is_some(),
        has_disconnected,
    })
}

// === impl Shape ===

impl RequestShape {
    /// The name in the report and in the command-line option.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completions => "completions",
            Self::Chat => "chat",
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }

    const fn api(self) -> Api {
        match self {
            Self::Completions => Api::Completions,
            Self::Chat => Api::Chat,
        }
    }
}

impl FromStr for RequestShape {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [Self::Completions, Self::Chat].into_iter().find(|shape| shape.name() == text);
        known.ok_or("expected completions or chat")
    }
}
