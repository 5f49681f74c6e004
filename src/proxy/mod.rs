//! Serves one request: from its head to the body of its response.
//!
//! ```text
//! accept     route, API key, limits    the gateway answers local routes itself; for every other
//!                                      request a record is opened
//! read_body  the complete body         needed to read its fields and to retry
//! peek       model, stream, limits     the bytes stay unchanged
//! control    engine-control fields     rejected, removed or forwarded, by permission
//! admit      lease on a backend        at once, or when one has capacity; the policy picks it
//! relay      send, buffer the response failover to another backend before the first output
//! respond    frames, observed          the lease and the exchange live in the response body
//! ```
//!
//! A request has no task and no channel of its own: the client connection polls the response body,
//! which polls the body of the backend. Back-pressure and cancellation follow from this. A client
//! disconnect drops the future or the body, and with it the connection to the backend.

mod accept;
pub mod access;
pub mod admission;
mod attempt;
mod body_memory;
mod client_info;
mod deadline;
mod engine_control;
mod first_output;
mod overload_guard;
mod relay;
mod request_body;
mod request_features;
pub mod retry;
mod upstream_body;

pub use body_memory::BodyMemory;
pub use client_info::ClientInfo;
pub use overload_guard::{OverloadGuard, OverloadLimits};

use crate::backend::Lease;
use crate::backend::pool::{BackendPool, BackendRequirements};
use crate::backend::routes;
use accept::RecordedRequest;
pub use accept::{AcceptedRequest, accept_request};
use access::{AccessControl, Principal};
use admission::AdmissionController;
use bytes::Bytes;
use deadline::FirstOutputDeadline;
use engine_control::EngineControlCheck;
use http::header::CONTENT_LENGTH;
use http::{HeaderName, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Body;
use retry::RetryController;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::access::ConcurrencyPermit;
use tokenweir_core::clock;
use tokenweir_core::error::{ErrorEnvelope, GatewayError};
use tokenweir_core::headers;
use tokenweir_core::observe::{
    Exchange, ExchangeRegistry, ObservedBody, PrefetchedBody, RecordReceiver, ResponseAbortHandle,
    StreamPolicy,
};
use tokenweir_core::openai::Api;
use tokenweir_core::record::{RequestOptions, TierResolver};
use tokenweir_core::trace_context::Propagation;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_net::client::HttpClient;

/// The parts of the gateway that serve a request.
pub struct ProxyContext {
    /// The backends.
    pub pool: Arc<BackendPool>,
    /// API keys, permissions and CORS.
    pub access: Arc<AccessControl>,
    /// Admission control and its queue.
    pub admission: Arc<AdmissionController>,
    /// The HTTP client for backends.
    pub backend_client: HttpClient,
    /// Decides about retries on other backends.
    pub retry: RetryController,
    /// Timeout of the first output of a stream, counted from the request head. `None`: no timeout.
    pub first_output_timeout: Option<Duration>,
    /// The consumer of the records of all requests.
    pub sink: Arc<dyn RecordReceiver>,
    /// Longest request body in bytes.
    pub max_body_bytes: usize,
    /// The memory of all request bodies together.
    pub body_memory: Arc<BodyMemory>,
    /// Longest wait for the next chunk of a request body.
    pub body_idle_timeout: Duration,
    /// Rejects requests while the gateway is overloaded.
    pub overload_guard: Arc<OverloadGuard>,
    /// Propagation of trace context. `None`: the context of the client is forwarded unchanged.
    pub propagation: Option<Propagation>,
    /// Determines the tier of a request.
    pub tiers: TierResolver,
    /// The registry of open requests.
    pub open_streams: Arc<ExchangeRegistry>,
    /// The headers that can contain a session id, the preferred one first.
    pub session_headers: Vec<HeaderName>,
    /// Share of requests in the trace capture, from 0 to 1; 0 without a capture.
    pub capture_ratio: f64,
    /// Sampling of prompt and response text. `None`: no text is sampled.
    pub payload_sampling: Option<PayloadSampling>,
}

/// The samples of requests whose prompt and response text is captured.
#[derive(Debug, Clone, Copy)]
pub struct PayloadSampling {
    /// Share of requests for the payload log, from 0 to 1, drawn at random.
    pub log_ratio: f64,
    /// Share of requests for quality monitoring, from 0 to 1. The draw is a hash of the trace id,
    /// or of the request id without a trace, so that all gateways sample the same traces.
    pub quality_ratio: f64,
    /// Longest excerpt of each text, in bytes.
    pub max_text_bytes: usize,
}

/// The body of a response: one that the gateway made, or the observed body of a backend.
pub type ProxyResponseBody =
    Either<Full<Bytes>, ObservedBody<BackendBody, (Lease, Option<ConcurrencyPermit>)>>;

/// Serves one [accepted](accept_request) request. `abort_handle` aborts the response if the client
/// does not read it.
pub async fn handle_request<B: request_body::IncomingBody>(
    gateway: &ProxyContext,
    accepted: AcceptedRequest,
    abort_handle: ResponseAbortHandle,
    request: Request<B>,
) -> Response<ProxyResponseBody> {
    let RecordedRequest { exchange, principal, permit, origin } = match accepted {
        AcceptedRequest::AnsweredLocally(response) => return response.map(Either::Left),
        AcceptedRequest::Recorded(recorded) => recorded,
    };
    let mut exchange = exchange.with_abort_handle(abort_handle);
    let envelope = ErrorEnvelope::for_path(request.uri().path());
    let request_id = exchange.record().request_id.clone();
    let result = match permit {
        Err(error) => Err(error),
        Ok(permit) => {
            let result = forward(gateway, &principal, &mut exchange, request).await;
            result.map(|(response, lease)| (response, lease, permit))
        }
    };
    let mut response = match result {
        Ok((mut response, lease, permit)) => {
            if exchange.may_change_length() {
                response.headers_mut().remove(CONTENT_LENGTH);
            }
            let guard = (lease, permit);
            response.map(|body| Either::Right(ObservedBody::new(body, exchange, guard)))
        }
        Err(error) => {
            let error = principal.redact_error(error, &gateway.pool);
            let response = error.to_response_in(envelope, Some(request_id.as_str()));
            let bytes = response.body().size_hint().lower();
            exchange.refuse(error.status().as_u16(), bytes, error.reason(), error.outcome());
            response.map(Either::Left)
        }
    };
    headers::rewrite_response_headers(response.headers_mut(), &request_id);
    principal.rate_limit_status.write(response.headers_mut());
    gateway.access.cors().apply(origin.as_ref(), response.headers_mut());
    response
}

/// Reads and checks the request, waits for admission, and relays it until a backend has answered.
async fn forward<B: request_body::IncomingBody>(
    gateway: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    request: Request<B>,
) -> Result<(Response<PrefetchedBody<BackendBody>>, Lease), GatewayError> {
    let (mut head, body) = request.into_parts();
    // Released when this function returns, together with the body.
    let mut memory_permit = gateway.body_memory.empty_permit();
    let (limit, idle_timeout) = (gateway.max_body_bytes, gateway.body_idle_timeout);
    let body =
        request_body::read_body(&head, body, limit, idle_timeout, &mut memory_permit).await?;
    let record = exchange.record();
    record.timings.received = Some(clock::now());
    record.bytes_in = body.len() as u64;
    let fields = request_body::peek_request(&head, &body, record.api)?;
    record.options = RequestOptions {
        stream: fields.stream,
        max_tokens: fields.max_tokens,
        n: fields.n,
        parameters: fields.parameters.clone(),
        ..RequestOptions::default()
    };
    let route = {
        let routes = gateway.pool.routes();
        let route = routes.lookup(fields.model.as_deref()).clone();
        record.model = route.label.clone();
        principal.check_model_access(fields.model.as_deref(), &routes)?;
        route
    };
    let access = &gateway.access;
    let mut control =
        EngineControlCheck::check(access, principal, route.permissions, record, &fields, &body)?;
    let prompt = request_features::hash_prompt(&fields, &route, control.salt.as_deref(), &body);
    let bytes = body.clone();
    let (api, edits) = (record.api, take(&mut control.edits));
    let body = upstream_body::UpstreamBody::new(body, api, &head.headers, &fields, &route, edits)?
        .with_usage_sampling_value(fastrand::f64());
    memory_permit.add(body.edited_copy_bytes())?;
    let requirements = BackendRequirements {
        model: fields.model.as_deref(),
        prompt: &prompt,
        is_stream: fields.stream,
        session: request_features::session_hash(&head.headers, &gateway.session_headers, &fields),
        seed: fastrand::u64(..),
    };
    if record.api.is_some_and(Api::generates) {
        record.captured = request_features::sample_for_capture(
            gateway.capture_ratio,
            &prompt,
            requirements.session,
            fastrand::u64(..),
        );
        if let Some(sampling) = gateway.payload_sampling {
            request_features::sample_payload(sampling, &fields, &bytes, fastrand::u64(..), record);
        }
    }
    let first_output = route.policy.first_output.or(gateway.first_output_timeout);
    let deadline = deadline::first_output_deadline(record, &head.headers, first_output);
    let tenant = record.caller.as_ref().map(|identity| &*identity.tenant);
    let flow_key = gateway.admission.flow_key(&head.headers, record.client, &record.tier, tenant);
    let lease = gateway.admission.admit(requirements, flow_key, &mut record.timings).await?;
    control.strip_headers(&mut head.headers);
    apply_route_policy(exchange.policy(), &route.policy, deadline);
    let response_headers = route.policy.response_headers;
    let backend_model = route.served_as.as_deref().or(requirements.model);
    let prepared = relay::PreparedRequest {
        head: &head,
        peek: &fields,
        body,
        requirements,
        deadline,
        backend_model,
        response_headers_timeout: response_headers,
    };
    relay::relay(gateway, exchange, prepared, lease).await
}

/// Applies the timeouts and the truncation handling of the route to the stream.
fn apply_route_policy(
    terms: &mut StreamPolicy,
    route: &routes::RoutePolicy,
    deadline: Option<FirstOutputDeadline>,
) {
    terms.first_output_by = deadline.map(FirstOutputDeadline::at);
    terms.idle = route.idle;
    terms.rules.on_truncation = route.on_truncation.unwrap_or(terms.rules.on_truncation);
}
