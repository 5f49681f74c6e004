//! One request of a replay in real time: a completion of made-up words, read as it streams.

use crate::backend::address::Address;
use crate::backend::client::{Client, SendError};
use crate::clock;
use crate::config::SecretValue;
use crate::headers::media_type;
use crate::lab::score::Served;
use crate::lab::synthesis::Synthesis;
use crate::lab::trace::Job;
use crate::observe::Observer;
use crate::openai::Api;
use crate::record::{Observed, Timings};
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// What is needed to send any request of a trace.
pub(super) struct Requester {
    pub(super) client: Client,
    pub(super) target: Address,
    /// The client's token, if it has one.
    pub(super) key: Option<SecretValue>,
    pub(super) model: String,
    pub(super) jobs: Arc<[Job]>,
    pub(super) synthesis: Synthesis,
}

/// How a request ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// What came, or the kind of failure.
    pub(super) result: Result<Answered, Cow<'static, str>>,
    /// There was no place for it when it was due.
    pub(super) has_waited: bool,
    /// It was sent so long after it was due.
    pub(super) late: Duration,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answered {
    /// Its times, from when it was due, and its tokens.
    pub(super) served: Served,
    /// The client left before its end, as the trace says.
    pub(super) has_left: bool,
    /// It told how much of the prompt was cached.
    pub(super) tells_cached: bool,
}

/// Why a server's model is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum ModelError {
    #[error("the server cannot be asked for its models")]
    Send(#[from] SendError),
    #[error("the server tells no model at /v1/models; give --model")]
    None,
}

/// The header that names a session by default.
const SESSION: HeaderName = HeaderName::from_static("x-session-id");
/// A client that leaves asks for so many tokens more than it takes: there is something to abort.
const NOT_TAKEN: u32 = 32;
/// Times that a request is sent again because its kept connection was closed.
const MAX_REPLAYS: u32 = 3;
/// Longest list of models that is read, in bytes.
const MAX_LIST: usize = 1 << 20;

/// The first model of a server.
pub(super) async fn first_model(
    client: &Client,
    target: &Address,
    key: Option<&SecretValue>,
) -> Result<String, ModelError> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = target.uri(&PathAndQuery::from_static("/v1/models"));
    request.headers_mut().insert(header::HOST, target.host_header().clone());
    authorize(request.headers_mut(), key);
    let response = client.send(request).await?;
    let body = Limited::new(response.into_body(), MAX_LIST).collect().await;
    let body = body.map_err(|_| ModelError::None)?.to_bytes();
    let list: serde_json::Value = serde_json::from_slice(&body).map_err(|_| ModelError::None)?;
    list["data"][0]["id"].as_str().map(str::to_owned).ok_or(ModelError::None)
}

// === impl Ended ===

impl Ended {
    /// Nothing else is known.
    pub(super) fn failed(kind: &'static str) -> Self {
        Self { result: Err(kind.into()), has_waited: false, late: Duration::ZERO }
    }
}

// === impl Requester ===

impl Requester {
    /// Sends a request that is due now, when there is a place for it, and reads its answer.
    pub(super) async fn ended(
        self: Arc<Self>,
        number: usize,
        due: Instant,
        places: Arc<Semaphore>,
    ) -> Ended {
        let has_waited = places.available_permits() == 0;
        // It is never closed.
        let _place = places.acquire().await;
        let late = clock::now().saturating_duration_since(due);
        let result = match self.jobs.get(number) {
            Some(job) => self.answer(job, number as u64, due).await,
            None => Err("defect".into()),
        };
        Ended { result, has_waited, late }
    }

    async fn answer(
        &self,
        job: &Job,
        number: u64,
        due: Instant,
    ) -> Result<Answered, Cow<'static, str>> {
        let response = self.send(job, number).await.map_err(|error| error.reason())?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("status_{}", status.as_u16()).into());
        }
        let mut observer = Observer::new(Api::Completions);
        observer.on_head(media_type(response.headers()), false);
        let mut timings = Timings::begin(due);
        let mut body = response.into_body();
        let mut has_left = false;
        while !has_left && let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| "broken")?;
            if let Some(data) = frame.data_ref() {
                observer.on_data(data, clock::now(), &mut timings);
            }
            let tokens = observer.observed().estimated_tokens;
            has_left = timings.first_output.is_some()
                && job.left_after.is_some_and(|after| tokens >= after.into());
        }
        answered(&observer.into_observed(), &timings, job, has_left)
    }

    /// A kept connection that had been closed is nobody's fault.
    async fn send(&self, job: &Job, number: u64) -> Result<Response<Incoming>, SendError> {
        let body = self.body(job, number);
        for _ in 0..MAX_REPLAYS {
            match self.client.send(self.request(job, body.clone())).await {
                Err(SendError::Stale) => {}
                result => return result,
            }
        }
        self.client.send(self.request(job, body)).await
    }

    fn body(&self, job: &Job, number: u64) -> Bytes {
        let wanted = job.left_after.map_or(0, |after| after.saturating_add(NOT_TAKEN));
        let body = serde_json::json!({
            "model": self.model,
            "prompt": self.synthesis.prompt(job, number),
            "max_tokens": job.output_tokens.max(wanted),
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        body.to_string().into()
    }

    fn request(&self, job: &Job, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.uri(&PathAndQuery::from_static("/v1/completions"));
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.target.host_header().clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        authorize(headers, self.key.as_ref());
        let session = job.session.and_then(|id| HeaderValue::from_str(&format!("{id:x}")).ok());
        headers.extend(session.map(|session| (SESSION, session)));
        request
    }
}

fn authorize(headers: &mut HeaderMap, key: Option<&SecretValue>) {
    let bearer = key.map(|key| key.bearer().clone());
    headers.extend(bearer.map(|bearer| (header::AUTHORIZATION, bearer)));
}

/// What was seen of a stream, if it is one that was answered.
fn answered(
    observed: &Observed,
    timings: &Timings,
    job: &Job,
    has_left: bool,
) -> Result<Answered, Cow<'static, str>> {
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
    let served = Served {
        ttft: first.saturating_duration_since(timings.accepted).as_secs_f64(),
        decode: last.saturating_duration_since(first).as_secs_f64(),
        prompt: usage.input.map_or(job.prompt_tokens, tokens),
        cached: tokens(usage.cached.unwrap_or(0)),
        output: tokens(usage.output.unwrap_or(observed.estimated_tokens)),
    };
    Ok(Answered { served, has_left, tells_cached: usage.cached.is_some() })
}
