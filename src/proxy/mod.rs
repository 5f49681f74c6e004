//! The story of a request, told once.
//!
//! ```text
//! open ─ is it inference? whose key?  else the gateway answers itself, or refuses; from here on
//!                                     there is a record, whatever happens
//! receive ─ the whole request body    it must be there to be peeked at and sent again
//! peek ─ model, stream, limits        the bytes stay as they came
//! control ─ may the client use the engine-control fields that it sends?
//! admit ─ a place, now or when a replica has room; the policy names the replica
//! relay ─ send it, hold its answer    ↺ another replica, while there is no output
//! forward ─ its frames, observed      the lease and the exchange travel in the body
//! ```
//!
//! There is no task and no channel for a request: the connection polls the answer's body, which polls
//! the replica's. Back-pressure and cancellation follow from that. A client that leaves drops the
//! future or the body, and with it the connection to the replica.

pub mod access;
pub mod admission;
mod asked;
mod attempt;
mod control;
mod deadline;
mod gate;
mod hold;
mod memory;
mod opening;
mod outgoing;
mod peer;
mod receive;
mod relay;
pub mod retry;

pub use gate::{Gate, GateLimits};
pub use memory::BodyMemory;
pub use peer::Peer;

use crate::backend::Lease;
use crate::backend::pool::{Need, Pool};
use crate::backend::routes;
use access::{Access, Visitor};
use admission::Admission;
use bytes::Bytes;
use control::Control;
use deadline::Deadline;
use http::header::CONTENT_LENGTH;
use http::{HeaderName, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Body;
use opening::Recorded;
pub use opening::{Opened, open};
use retry::Retry;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::access::Place;
use tokenweir_core::clock;
use tokenweir_core::error::{Envelope, Error};
use tokenweir_core::headers;
use tokenweir_core::observe::{Begun, Exchange, Leash, Live, ObservedBody, Sink, Terms};
use tokenweir_core::openai::Api;
use tokenweir_core::record::{Asked, Tiers};
use tokenweir_core::trace_context::Propagation;
use tokenweir_net::client::Client;
use tokenweir_net::connection::ReplicaBody;

/// What a request needs to be served.
pub struct Gateway {
    /// The replicas.
    pub pool: Arc<Pool>,
    /// Who may come in.
    pub access: Arc<Access>,
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
    /// The memory of all of them together.
    pub body_memory: Arc<BodyMemory>,
    /// Longest wait for more of one.
    pub body_idle: Duration,
    /// Whether new work is taken.
    pub gate: Arc<Gate>,
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

/// Samples of requests whose prompts and answers are kept.
#[derive(Debug, Clone, Copy)]
pub struct KeptText {
    /// The share of requests for the content log, drawn by luck.
    pub log: f64,
    /// The share for those who look at quality. It is drawn by the trace, or else by the request id,
    /// so that a trace is in the sample of all gateways or of none.
    pub quality: f64,
    /// The first so many bytes of each text.
    pub bytes: usize,
}

/// The body of an answer: our own, or a replica's as it comes.
pub type Answer = Either<Full<Bytes>, ObservedBody<ReplicaBody, (Lease, Option<Place>)>>;

/// Serves one request that has been [opened](open). The leash ends its answer if it is not taken.
pub async fn handle<B: receive::Incoming>(
    gateway: &Gateway,
    opened: Opened,
    leash: Leash,
    request: Request<B>,
) -> Response<Answer> {
    let Recorded { exchange, visitor, entered, origin } = match opened {
        Opened::Answered(answer) => return answer.map(Either::Left),
        Opened::Recorded(recorded) => recorded,
    };
    let mut exchange = exchange.on_leash(leash);
    let envelope = Envelope::of(request.uri().path());
    let request_id = exchange.record().request_id.clone();
    let result = match entered {
        Err(error) => Err(error),
        Ok(place) => {
            let answer = forward(gateway, &visitor, &mut exchange, request).await;
            answer.map(|(response, lease)| (response, lease, place))
        }
    };
    let mut response = match result {
        Ok((mut response, lease, place)) => {
            if exchange.may_change_length() {
                response.headers_mut().remove(CONTENT_LENGTH);
            }
            let held = (lease, place);
            response.map(|body| Either::Right(ObservedBody::new(body, exchange, held)))
        }
        Err(error) => {
            let error = visitor.censor(error, &gateway.pool);
            let response = error.response_in(envelope, Some(request_id.as_str()));
            let bytes = response.body().size_hint().lower();
            exchange.refuse(error.status().as_u16(), bytes, error.reason(), error.outcome());
            response.map(Either::Left)
        }
    };
    headers::inbound(response.headers_mut(), &request_id);
    visitor.standing.write(response.headers_mut());
    gateway.access.cors().apply(origin.as_ref(), response.headers_mut());
    response
}

/// Receives, peeks, and sends until a replica has answered.
async fn forward<B: receive::Incoming>(
    gateway: &Gateway,
    visitor: &Visitor,
    exchange: &mut Exchange,
    request: Request<B>,
) -> Result<(Response<Begun<ReplicaBody>>, Lease), Error> {
    let (mut head, body) = request.into_parts();
    // Given back when the answer begins, as the body is.
    let mut held = gateway.body_memory.begin();
    let (limit, patience) = (gateway.max_body, gateway.body_idle);
    let body = receive::whole(&head, body, limit, patience, &mut held).await?;
    let record = exchange.record();
    record.timings.received = Some(clock::now());
    record.bytes_in = body.len() as u64;
    let peek = receive::peek(&head, &body, record.api)?;
    record.asked = Asked {
        stream: peek.stream,
        max_tokens: peek.max_tokens,
        n: peek.n,
        parameters: peek.parameters.clone(),
        ..Asked::default()
    };
    let route = {
        let routes = gateway.pool.routes();
        let route = routes.of(peek.model.as_deref()).clone();
        record.model = route.label.clone();
        visitor.may_use(peek.model.as_deref(), &routes)?;
        route
    };
    let access = &gateway.access;
    let mut control = Control::check(access, visitor, route.allowed, record, &peek, &body)?;
    let prompt = asked::prompt(&peek, &route, control.salt.as_deref(), &body);
    let bytes = body.clone();
    let (api, edits) = (record.api, take(&mut control.edits));
    let body = outgoing::Body::new(body, api, &head.headers, &peek, &route, edits)?
        .with_usage_draw(fastrand::f64());
    held.add(body.copy_len())?;
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
        if let Some(kept) = gateway.kept_text {
            asked::keep_text(kept, &peek, &bytes, fastrand::u64(..), record);
        }
    }
    let first_output = route.terms.first_output.or(gateway.first_output);
    let deadline = deadline::of(record, &head.headers, first_output);
    let tenant = record.caller.as_ref().map(|caller| &*caller.tenant);
    let caller = gateway.admission.caller(&head.headers, record.client, &record.tier, tenant);
    let place = gateway.admission.admit(need, caller, &mut record.timings).await?;
    control.strip(&mut head.headers);
    agree(exchange.terms(), &route.terms, deadline);
    let response_headers = route.terms.response_headers;
    let model = route.served_as.as_deref().or(need.model);
    let call =
        relay::Call { head: &head, peek: &peek, body, need, deadline, model, response_headers };
    relay::relay(gateway, exchange, call, place).await
}

/// The terms of a stream: those of its route, where it has some.
fn agree(terms: &mut Terms, route: &routes::Terms, deadline: Option<Deadline>) {
    terms.first_output_by = deadline.map(Deadline::at);
    terms.idle = route.idle;
    terms.rules.on_truncation = route.on_truncation.unwrap_or(terms.rules.on_truncation);
}
