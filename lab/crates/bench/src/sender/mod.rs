//! Sends benchmark requests with generated prompts and measures the streamed responses with the
//! gateway's own response observer.

mod target_client;

pub use target_client::{TargetClient, TargetError};

use super::measurement::{RequestFailure, ResponseMeasurement};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Collected, Limited};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tokenweir_net::backend_body::BackendResponse;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::media_type;
use tokenweir_protocol::named_enum;
use tokenweir_protocol::openai::Api;
use tokenweir_replay::trace::TraceRequest;
use tokenweir_request::observe::ResponseObserver;
use tokenweir_request::record::{ObservedResponse, Timings};

/// Sends the benchmark requests to one server, and measures the responses.
#[derive(Debug)]
pub struct BenchRequestSender {
    /// The HTTP client of this server, with its address and API key.
    pub asker: TargetClient,
    /// The model name that each request contains.
    pub model: String,
    /// The OpenAI API that the requests call.
    pub shape: RequestShape,
    /// Maximum time from sending a request to the end of its response.
    pub timeout: Duration,
}

named_enum! {
    /// The OpenAI API that the benchmark requests call.
    #[derive(Default)]
    pub enum RequestShape {
        /// Requests to `/v1/completions`.
        #[default]
        Completions = "completions",
        /// Requests to `/v1/chat/completions`, with one message.
        Chat = "chat",
    }
}

/// The request header with the session id of the trace. It is the first of the default session headers of the
/// gateway.
const SESSION_ID_HEADER: HeaderName = HeaderName::from_static("x-session-id");
const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// In a request whose client disconnects after a number of tokens, the number of output tokens that it asks
/// for in addition. So the server is still generating when the client disconnects.
const DISCONNECT_EXTRA_TOKENS: u32 = 32;
/// Maximum number of bytes that are read from an error response.
const MAX_ERROR_BYTES: usize = 16 << 10;
/// Maximum number of recorded times between events per response. It limits the memory that an endless
/// response can take.
const MAX_RECORDED_GAPS: usize = 1 << 17;

struct ObservedStream {
    observed: ObservedResponse,
    timings: Timings,
    /// Times between events with output, in seconds.
    gaps: Vec<f64>,
    /// Whether the client disconnected before the end of the response, as recorded in the trace.
    has_disconnected: bool,
}

impl BenchRequestSender {
    /// Builds the JSON body of a request. The body asks for a stream with usage.
    pub fn body(&self, prompt: &str, planned: &TraceRequest) -> Bytes {
        let min_tokens = planned
            .disconnect_after_tokens
            .map_or(0, |tokens| tokens.saturating_add(DISCONNECT_EXTRA_TOKENS));
        let mut body = serde_json::json!({
            "model": self.model,
            "max_tokens": planned.output_tokens.max(min_tokens),
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

    /// Sends a request and reads its response. The client reads to the end, or disconnects after the number
    /// of tokens that the trace states. Fails with the kind `timeout` after `self.timeout`.
    pub async fn answer(
        &self,
        planned: &TraceRequest,
        body: Bytes,
        id: Option<&str>,
    ) -> Result<ResponseMeasurement, RequestFailure> {
        let measurement = async {
            let sent = clock::now();
            let response = self
                .asker
                .send(None, || self.request(planned, body.clone(), id))
                .await;
            let response = response.map_err(|error| RequestFailure {
                kind: error.reason().into(),
                message: Some(error.to_string()),
            })?;
            let status = response.status();
            if !status.is_success() {
                let text = Limited::new(response.into_body(), MAX_ERROR_BYTES)
                    .collect()
                    .await
                    .ok();
                let text = text.map(Collected::to_bytes);
                return Err(RequestFailure {
                    kind: format!("status_{}", status.as_u16()).into(),
                    message: text.as_deref().and_then(target_client::error_message),
                });
            }
            measure_response(self.observe_stream(response, planned, sent).await?, planned)
        };
        let measurement = tokio::time::timeout(self.timeout, measurement).await;
        measurement.unwrap_or_else(|_| Err("timeout".into()))
    }

    async fn observe_stream(
        &self,
        response: BackendResponse,
        planned: &TraceRequest,
        sent: Instant,
    ) -> Result<ObservedStream, RequestFailure> {
        let mut observer = ResponseObserver::new(self.shape.api());
        observer.on_head(media_type(response.headers()), false);
        let mut timings = Timings::begin(sent);
        let mut body = response.into_body();
        let mut gaps = Vec::new();
        let mut has_disconnected = false;
        while !has_disconnected && let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| RequestFailure::from("broken"))?;
            if let Some(data) = frame.data_ref() {
                let before = observer.observed().inter_chunk_latency.count();
                let arrival = observer.on_data(data, clock::now(), &mut timings);
                let added = observer.observed().inter_chunk_latency.count() - before;
                // All events of one read have the same arrival time. Only the first of them has a time above
                // 0 since the previous event.
                let new_gaps = (MAX_RECORDED_GAPS - gaps.len()).min(added as usize);
                let longest_gap = arrival.gap.unwrap_or_default().as_secs_f64();
                let zero_gaps = std::iter::repeat_n(0.0, new_gaps.saturating_sub(1));
                gaps.extend(std::iter::once(longest_gap).chain(zero_gaps).take(new_gaps));
            }
            let tokens = observer.observed().estimated_tokens;
            has_disconnected = timings.first_output.is_some()
                && planned
                    .disconnect_after_tokens
                    .is_some_and(|limit| tokens >= limit.into());
        }
        Ok(ObservedStream {
            observed: *observer.into_observed(),
            timings,
            gaps,
            has_disconnected,
        })
    }

    fn request(&self, planned: &TraceRequest, body: Bytes, id: Option<&str>) -> Request<Bytes> {
        let mut request = self
            .asker
            .request(&PathAndQuery::from_static(self.shape.path()), body);
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        let session = planned
            .session
            .and_then(|id| HeaderValue::from_str(&format!("{id:x}")).ok());
        headers.extend(session.map(|session| (SESSION_ID_HEADER, session)));
        let id = id.and_then(|id| HeaderValue::from_str(id).ok());
        headers.extend(id.map(|id| (REQUEST_ID_HEADER, id)));
        request
    }
}

/// Computes the measurement of a stream. Fails if the response is not a stream or contains an error, or if it
/// ended early although the client did not disconnect.
fn measure_response(
    stream: ObservedStream,
    planned: &TraceRequest,
) -> Result<ResponseMeasurement, RequestFailure> {
    let ObservedStream {
        observed,
        timings,
        gaps,
        has_disconnected,
    } = stream;
    let is_complete = observed.is_complete && observed.finish_reasons.iter().any(Option::is_some);
    // A token can have no text. If all tokens of a response have no text, the response has no output, so its
    // first event counts instead.
    let first = timings.first_output.or(timings.first_event);
    let Some(first) = first else {
        return Err("no_stream".into());
    };
    if !observed.is_stream {
        return Err("no_stream".into());
    }
    if observed.error.is_some() {
        return Err("stream_error".into());
    }
    if !is_complete && !has_disconnected {
        return Err("truncated".into());
    }
    let last = timings.last_output.unwrap_or(first);
    let to_u32 = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let usage = &observed.usage;
    Ok(ResponseMeasurement {
        ttft: first
            .saturating_duration_since(timings.accepted)
            .as_secs_f64(),
        decode: last.saturating_duration_since(first).as_secs_f64(),
        gaps,
        input: usage.input.map_or(planned.prompt_tokens, to_u32),
        cached: usage.cached.map(to_u32),
        output: to_u32(usage.output.unwrap_or(observed.estimated_tokens)),
        is_counted: usage.output.is_some(),
        has_disconnected,
    })
}

impl RequestShape {
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
        let shape = Self::ALL.into_iter().find(|shape| shape.as_str() == text);
        shape.ok_or("expected completions or chat")
    }
}
