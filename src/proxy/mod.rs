//! The story of a request, told once.
//!
//! ```text
//! route ─ is it inference?            no: the gateway answers itself, or refuses
//! receive ─ the whole request body    it must be there to be peeked at and sent again
//! peek ─ model, stream, limits        the bytes stay as they came
//! admit ─ a place, now or when a replica has room; the policy names the replica
//! relay ─ send it, hold its answer    ↺ another replica, while there is no output
//! forward ─ its frames, observed      the lease and the exchange travel in the body
//! ```
//!
//! There is no task and no channel for a request: hyper polls the answer's body, which polls the
//! replica's. Back-pressure and cancellation follow from that. A client that leaves drops the
//! future or the body, and with it the connection to the replica.

pub mod admission;
mod asked;
mod attempt;
mod deadline;
mod hold;
mod opening;
mod outgoing;
mod receive;
mod relay;
pub mod retry;

use crate::backend::Lease;
use crate::backend::client::Client;
use crate::backend::pool::{Need, Pool};
use crate::backend::routes;
use crate::clock;
use crate::error::Error;
use crate::headers;
use crate::observe::{Begun, Exchange, Live, ObservedBody, Sink, Terms};
use crate::openai::Api;
use crate::openai::route::{NoRoute, Route};
use crate::own;
use crate::record::{Asked, Tiers};
use crate::trace_context::Propagation;
use admission::Admission;
use bytes::Bytes;
use deadline::Deadline;
use http::header::CONTENT_LENGTH;
use http::{HeaderName, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use receive::{peek, receive};
use retry::Retry;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// What a request needs to be served.
pub struct Gateway {
    /// The replicas.
    pub pool: Arc<Pool>,
    /// Who may go to them now, and who waits.
    pub admission: Arc<Admission>,
    /// The way to them.
    pub client: Client,
    /// Whether a request that failed goes to another replica.
    pub retry: Retry,
    /// How long the first output of a stream is waited for, from the head of its request on.
    pub first_output: Option<Duration>,
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
) -> Result<(Response<Begun<Incoming>>, Lease), Error> {
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
    let body = outgoing::Body::new(body, record.api, &head.headers, &peek, &route)?;
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
    let first_output = route.terms.first_output.or(gateway.first_output);
    let deadline = deadline::of(record, &head.headers, first_output);
    let caller = gateway.admission.caller(&head.headers, record.client, &record.tier);
    let place = gateway.admission.admit(need, caller, &mut record.timings).await?;
    agree(exchange.terms(), &route.terms, deadline);
    let response_headers = route.terms.response_headers;
    let call = relay::Call { head: &head, peek: &peek, body, need, deadline, response_headers };
    relay::relay(gateway, exchange, call, place).await
}

/// The terms of a stream: those of its route, where it has some.
fn agree(terms: &mut Terms, route: &routes::Terms, deadline: Option<Deadline>) {
    terms.first_output_by = deadline.map(Deadline::at);
    terms.idle = route.idle;
    terms.rules.on_truncation = route.on_truncation.unwrap_or(terms.rules.on_truncation);
}

fn refusal(no_route: NoRoute, path: &str) -> Error {
    match no_route {
        NoRoute::NotFound => Error::NotFound { path: path.chars().take(200).collect() },
        NoRoute::MethodNotAllowed(allow) => Error::MethodNotAllowed { allow },
    }
}
