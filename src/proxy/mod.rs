//! The story of a request, told once.
//!
//! ```text
//! route ─ is it inference?            no: the gateway answers itself, or refuses
//! receive ─ the whole request body    it must be there to be peeked at and sent again
//! peek ─ model, stream, limits        the bytes stay as they came
//! admit ─ a place, now or when a replica has room
//! lease ─ the policy names a replica  ↺ another one while none has accepted the connection
//! send ─ the head of the answer
//! forward ─ its frames, observed      the lease and the exchange travel in the body
//! ```
//!
//! There is no task and no channel for a request: hyper polls the answer's body, which polls the
//! replica's. Back-pressure and cancellation follow from that. A client that leaves drops the
//! future or the body, and with it the connection to the replica.

pub mod admission;
mod asked;
mod attempt;
mod opening;
mod outgoing;

use crate::backend::client::{Client, SendError};
use crate::backend::pool::{Need, Pool};
use crate::backend::{Backend, Lease};
use crate::clock;
use crate::error::Error;
use crate::headers;
use crate::observe::{Exchange, Live, ObservedBody, Sink};
use crate::openai::request::{Peek, PeekError};
use crate::openai::route::{NoRoute, Route};
use crate::openai::{Api, form};
use crate::own;
use crate::record::{Asked, Tiers};
use crate::trace_context::Propagation;
use admission::Admission;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, Request, Response, request};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use std::net::IpAddr;
use std::sync::Arc;

/// What a request needs to be served.
pub struct Gateway {
    /// The replicas.
    pub pool: Arc<Pool>,
    /// Who may go to them now, and who waits.
    pub admission: Arc<Admission>,
    /// The way to them.
    pub client: Client,
    /// Who hears of every request.
    pub sink: Arc<dyn Sink>,
    /// Longest request body in bytes.
    pub max_body: usize,
    /// How trace context comes in and goes on. `None`: a caller's passes through.
    pub propagation: Option<Propagation>,
    /// How the tier of a request is told.
    pub tiers: Tiers,
    /// The requests that are open.
    pub live: Arc<Live>,
    /// The headers that may name a session, the one to prefer first.
    pub session_headers: Vec<HeaderName>,
    /// The share of requests that a capture keeps; 0 without one.
    pub captured: f64,
    /// Whose text is kept. `None`: nobody's.
    pub kept_text: Option<KeptText>,
}

/// A sample of requests whose prompts and answers are kept.
#[derive(Debug, Clone, Copy)]
pub struct KeptText {
    /// The share of requests.
    pub share: f64,
    /// The first so many bytes of each text.
    pub bytes: usize,
}

/// The body of an answer: our own, or a replica's as it comes.
pub type Answer = Either<Full<Bytes>, ObservedBody<Incoming, Lease>>;

/// Serves one request from `client`.
pub async fn handle(
    gateway: &Gateway,
    client: IpAddr,
    request: Request<Incoming>,
) -> Response<Answer> {
    let route = Route::of(request.method(), request.uri().path());
    let api = match &route {
        Ok((Route::Forward(api), _)) => Some(*api),
        Ok((own, _)) => return own::answer(*own, &gateway.pool).map(Either::Left),
        Err(_) => None,
    };
    let path = route.ok().map(|(_, path)| path);
    let record = opening::record(&request, client, api, path, gateway);
    let request_id = record.request_id.clone();
    let mut exchange = Exchange::open(record, gateway.sink.clone(), &gateway.live);
    let result = match route {
        Ok(_) => forward(gateway, &mut exchange, request).await,
        Err(no_route) => Err(refusal(no_route, request.uri().path())),
    };
    let mut response = match result {
        Ok((mut response, lease)) => {
            exchange.on_head(response.status().as_u16(), response.headers(), lease.replica());
            if exchange.is_stripping() {
                response.headers_mut().remove(CONTENT_LENGTH);
            }
            response.map(|body| Either::Right(ObservedBody::new(body, exchange, lease)))
        }
        Err(error) => {
            let response = error.response();
            let bytes = response.body().size_hint().lower();
            exchange.refuse(error.status().as_u16(), bytes, error.reason(), error.outcome());
            response.map(Either::Left)
        }
    };
    headers::inbound(response.headers_mut(), &request_id);
    response
}

/// Receives, peeks, and sends until a replica has answered.
async fn forward(
    gateway: &Gateway,
    exchange: &mut Exchange,
    request: Request<Incoming>,
) -> Result<(Response<Incoming>, Lease), Error> {
    let (head, body) = request.into_parts();
    let body = receive(&head, body, gateway.max_body).await?;
    let record = exchange.record();
    record.timings.received = Some(clock::now());
    record.bytes_in = body.len() as u64;
    let peek = peek(&head, &body, record.api).await?;
    record.asked = Asked {
        stream: peek.stream,
        max_tokens: peek.max_tokens,
        n: peek.n,
        parameters: peek.parameters.clone(),
        usage_injected: false,
    };
    let route = gateway.pool.routes().of(peek.model.as_deref()).clone();
    record.model = route.label.clone();
    let prompt = asked::prompt(&peek, &route, &body);
    let bytes = body.clone();
    let mut body = outgoing::Body::new(body, record.api, &head.headers, &peek, &route)?;
    let need = Need {
        model: peek.model.as_deref(),
        prompt: &prompt,
        is_stream: peek.stream,
        session: asked::session(&head.headers, &gateway.session_headers, &peek),
        seed: fastrand::u64(..),
    };
    if record.api.is_some_and(Api::generates) {
        record.captured =
            asked::captured(gateway.captured, &prompt, need.session, fastrand::u64(..));
        record.prompt =
            gateway.kept_text.and_then(|kept| asked::text(kept, &peek, &bytes, fastrand::u64(..)));
    }
    let caller = gateway.admission.caller(&head.headers, record.client, &record.tier);
    let mut place = gateway.admission.admit(need, caller, &mut record.timings).await?;
    let mut tried: Vec<Arc<Backend>> = Vec::new();
    loop {
        let (lease, decision) = place;
        let record = exchange.record();
        record.decision = Some(decision);
        record.timings.routed = Some(clock::now());
        let (body, usage_injected) = body.for_replica(lease.backend());
        record.asked.usage_injected = usage_injected;
        match attempt::send(&gateway.client, record, lease.backend(), &head, body).await {
            Ok(response) => return Ok((response, lease)),
            // The request has not been sent, so another replica may have it. It has been admitted,
            // and does not wait again.
            Err(SendError::Connect(reason)) => {
                lease.backend().suspect(&reason);
                tried.push(lease.backend().clone());
                drop(lease);
                place = gateway.pool.lease(need, &tried, clock::now())?;
            }
            Err(error) => return Err(failure(&error)),
        }
    }
}

/// Reads the whole body, if it is not too long and not encoded.
async fn receive(head: &request::Parts, body: Incoming, limit: usize) -> Result<Bytes, Error> {
    if let Some(encoding) = head.headers.get(CONTENT_ENCODING)
        && encoding.as_bytes() != b"identity"
    {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        return Err(Error::EncodedBody { encoding });
    }
    let length = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if length.and_then(|length| length.parse().ok()).is_some_and(|length: usize| length > limit) {
        return Err(Error::BodyTooLarge { limit });
    }
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Error::BodyTooLarge { limit }),
        Err(_) => Err(Error::BodyCut),
    }
}

/// Audio comes in forms. The shapes that we know must be JSON; others may be, and then their model
/// is known too, and must be clear.
async fn peek(head: &request::Parts, body: &Bytes, api: Option<Api>) -> Result<Peek, Error> {
    if api == Some(Api::Audio) {
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        return Ok(form::peek(content_type.unwrap_or_default(), body).await?);
    }
    match (Peek::of(body), api) {
        (Ok(peek), _) => Ok(peek),
        (Err(PeekError::NotJson), Some(Api::Other)) => Ok(Peek::default()),
        (Err(error), _) => {
            tracing::debug!(path = head.uri.path(), %error, "body refused");
            Err(error.into())
        }
    }
}

fn refusal(no_route: NoRoute, path: &str) -> Error {
    match no_route {
        NoRoute::NotFound => Error::NotFound { path: path.chars().take(200).collect() },
        NoRoute::MethodNotAllowed(allow) => Error::MethodNotAllowed { allow },
    }
}

fn failure(error: &SendError) -> Error {
    match error {
        SendError::Connect(_) => Error::NoBackend,
        SendError::Stale | SendError::Closed(_) => Error::Closed,
        SendError::Garbage(_) => Error::Garbage,
        SendError::Timeout(limit) => Error::HeaderTimeout { seconds: limit.as_secs() },
    }
}
