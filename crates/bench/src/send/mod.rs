//! Requests over the wire: made-up words in, a stream out, read as the gateway reads it.

mod asking;

pub use asking::{AskError, Asker};

use super::measure::{Answer, Failure};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Collected, Limited};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::headers::media_type;
use tokenweir_core::observe::Observer;
use tokenweir_core::openai::Api;
use tokenweir_core::record::{Observed, Timings};
use tokenweir_lab::trace::Job;
use tokenweir_net::client::{Client, SendError};
use tokenweir_net::connection::ReplicaBody;
use tokenweir_net::idle::Idle;

/// Sends requests to one server.
#[derive(Debug)]
pub struct Sender {
    /// Whom, and as whom.
    pub asker: Asker,
    /// The model to ask for.
    pub model: String,
    /// In which shape.
    pub shape: Shape,
    /// Longest time from sending a request to the end of its answer.
    pub timeout: Duration,
}

/// In which shape requests are sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/completions`.
    #[default]
    Completions,
    /// `/v1/chat/completions`, with one message.
    Chat,
}

/// The header that names a session by default.
const SESSION: HeaderName = HeaderName::from_static("x-session-id");
/// The header that names a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A client that leaves asks for so many tokens more than it takes: there is something to abort.
const NOT_TAKEN: u32 = 32;
/// Times that a request is sent again because its kept connection was closed.
const MAX_REPLAYS: u32 = 3;
/// Longest error that is read, in bytes.
const MAX_ERROR: usize = 16 << 10;
/// Most gaps of one answer that are kept. A server may send without end.
const MAX_GAPS: usize = 1 << 17;

/// A stream as it came.
struct Streamed {
    observed: Observed,
    timings: Timings,
    gaps: Vec<f64>,
    has_left: bool,
}

impl Sender {
    /// The body of a request.
    pub fn body(&self, prompt: &str, job: &Job) -> Bytes {
        let wanted = job.left_after.map_or(0, |after| after.saturating_add(NOT_TAKEN));
        let mut body = serde_json::json!({
            "model": self.model,
            "max_tokens": job.output_tokens.max(wanted),
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        match self.shape {
            Shape::Completions => body["prompt"] = prompt.into(),
            Shape::Chat => {
                body["messages"] = serde_json::json!([{ "role": "user", "content": prompt }]);
            }
        }
        body.to_string().into()
    }

    /// Sends a request now, and reads its answer to the end, or until its client leaves as the
    /// trace says.
    pub async fn answer(
        &self,
        job: &Job,
        body: Bytes,
        id: Option<&str>,
    ) -> Result<Answer, Failure> {
        let sent = clock::now();
        let answer = tokio::time::timeout(self.timeout, self.answer_patiently(job, body, id, sent));
        answer.await.unwrap_or_else(|_| Err("timeout".into()))
    }

    async fn answer_patiently(
        &self,
        job: &Job,
        body: Bytes,
        id: Option<&str>,
        sent: Instant,
    ) -> Result<Answer, Failure> {
        let response = self.send(job, body, id).await.map_err(|error| Failure {
            kind: error.reason().into(),
            said: Some(error.to_string()),
        })?;
        let status = response.status();
        if !status.is_success() {
            let said = Limited::new(response.into_body(), MAX_ERROR).collect().await.ok();
            let said = said.map(Collected::to_bytes).as_deref().and_then(asking::message);
            return Err(Failure { kind: format!("status_{}", status.as_u16()).into(), said });
        }
        answer_of(self.read(response, job, sent).await?, job)
    }

    async fn read(
        &self,
        response: Response<ReplicaBody>,
        job: &Job,
        sent: Instant,
    ) -> Result<Streamed, Failure> {
        let mut observer = Observer::new(self.shape.api());
        observer.on_head(media_type(response.headers()), false);
        let mut timings = Timings::begin(sent);
        let mut body = response.into_body();
        let (mut gaps, mut has_left) = (Vec::new(), false);
        while !has_left && let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Failure::from("broken"))?;
            if let Some(data) = frame.data_ref() {
                let before = observer.observed().gaps.count();
                let arrival = observer.on_data(data, clock::now(), &mut timings);
                let added = observer.observed().gaps.count() - before;
                // Events that one read brings have one time: only the first of them has a gap.
                let room = (MAX_GAPS - gaps.len()).min(added as usize);
                let longest = arrival.gap.unwrap_or_default().as_secs_f64();
                let others = std::iter::repeat_n(0.0, room.saturating_sub(1));
                gaps.extend(std::iter::once(longest).chain(others).take(room));
            }
            let tokens = observer.observed().estimated_tokens;
            has_left = timings.first_output.is_some()
                && job.left_after.is_some_and(|after| tokens >= after.into());
        }
        Ok(Streamed { observed: observer.into_observed(), timings, gaps, has_left })
    }

    /// A kept connection that had been closed is nobody's fault.
    async fn send(
        &self,
        job: &Job,
        body: Bytes,
        id: Option<&str>,
    ) -> Result<Response<ReplicaBody>, SendError> {
        for _ in 0..MAX_REPLAYS {
            match self.asker.send(self.request(job, body.clone(), id)).await {
                Err(SendError::Stale { .. }) => {}
                result => return result,
            }
        }
        self.asker.send(self.request(job, body, id)).await
    }

    fn request(&self, job: &Job, body: Bytes, id: Option<&str>) -> Request<Bytes> {
        let mut request = self.asker.request(&PathAndQuery::from_static(self.shape.path()), body);
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let session = job.session.and_then(|id| HeaderValue::from_str(&format!("{id:x}")).ok());
        headers.extend(session.map(|session| (SESSION, session)));
        let id = id.and_then(|id| HeaderValue::from_str(id).ok());
        headers.extend(id.map(|id| (REQUEST_ID, id)));
        request
    }
}

/// What came of a stream, if it is one that was answered.
fn answer_of(streamed: Streamed, job: &Job) -> Result<Answer, Failure> {
    let Streamed { observed, timings, gaps, has_left } = streamed;
    let is_whole = observed.is_terminal && observed.finish_reasons.iter().any(Option::is_some);
    // Tokens may have no text, even all of them.
    let first = timings.first_output.or(timings.first_event);
    let Some(first) = first.filter(|_| observed.is_stream) else { return Err("no_stream".into()) };
    if observed.error.is_some() {
        return Err("stream_error".into());
    }
    if !is_whole && !has_left {
        return Err("truncated".into());
    }
    let last = timings.last_output.unwrap_or(first);
    let tokens = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let usage = &observed.usage;
    Ok(Answer {
        ttft: first.saturating_duration_since(timings.accepted).as_secs_f64(),
        decode: last.saturating_duration_since(first).as_secs_f64(),
        gaps,
        input: usage.input.map_or(job.prompt_tokens, tokens),
        cached: usage.cached.map(tokens),
        output: tokens(usage.output.unwrap_or(observed.estimated_tokens)),
        is_counted: usage.output.is_some(),
        has_left,
    })
}

// === impl Shape ===

impl Shape {
    /// Its name.
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

impl FromStr for Shape {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [Self::Completions, Self::Chat].into_iter().find(|shape| shape.name() == text);
        known.ok_or("there are completions and chat")
    }
}
