//! Handles one accepted request: reads its body, sends the request to a backend, and makes the head
//! of the response.

use super::accept::{AcceptedRequest, RecordedRequest};
use super::access::Principal;
use super::context::{ProxyContext, ProxyState, RequestSettings};
use super::lookup;
use super::relay::{self, PreparedRequest};
use super::request::body::{self, IncomingBody};
use super::request::configured_routes::ConfiguredRoute;
use super::request::deadline::{self, FirstOutputDeadline, RequestDeadlines};
use super::request::engine_control::EngineControlCheck;
use super::request::features;
use super::request::upstream_body::UpstreamBody;
use super::routing_headers;
use crate::backend::Lease;
use crate::backend::pool::BackendRequirements;
use crate::backend::routes::{self, ModelRoute};
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Body;
use std::mem::take;
use std::sync::Arc;
use tokenweir_core::access::ConcurrencyPermit;
use tokenweir_core::clock;
use tokenweir_core::error::{ErrorEnvelope, GatewayError};
use tokenweir_core::headers;
use tokenweir_core::observe::{
    Exchange, ObservedBody, PrefetchedBody, ResponseAbortHandle, StreamPolicy,
};
use tokenweir_core::openai::Api;
use tokenweir_core::openai::engine_control::Permission;
use tokenweir_core::openai::request_fields::RequestFields;
use tokenweir_core::openai::route::ApiRoute;
use tokenweir_core::record::{RequestOptions, RequestRecord, RoutingDecision};
use tokenweir_net::backend_body::BackendBody;

/// The body of a response to a client: a complete body that the gateway made, such as an error, or
/// the observed body from a backend.
pub type ProxyResponseBody =
    Either<Full<Bytes>, ObservedBody<BackendBody, (Lease, Option<ConcurrencyPermit>)>>;

/// Handles one [accepted](super::accept_request) request and returns its response. `abort_handle`
/// aborts the response if the client does not read the response.
pub async fn handle_request<B: IncomingBody>(
    context: &ProxyContext,
    accepted: AcceptedRequest,
    abort_handle: ResponseAbortHandle,
    request: Request<B>,
) -> Response<ProxyResponseBody> {
    let RecordedRequest { exchange, principal, permit, route, configured, origin } = match accepted
    {
        AcceptedRequest::AnsweredLocally(response) => return response.map(Either::Left),
        AcceptedRequest::Recorded(recorded) => recorded,
    };
    let mut exchange = exchange.with_abort_handle(abort_handle);
    let envelope = ErrorEnvelope::for_path(request.uri().path());
    let request_id = exchange.record().request_id.clone();
    let result = match permit {
        Err(error) => Err(error),
        Ok(permit) => {
            let result = if route == Some(ApiRoute::StoredResponse) {
                lookup::forward(context, &principal, &mut exchange, request).await
            } else {
                let configured = configured.as_deref();
                forward(context, &principal, &mut exchange, configured, request).await
            };
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
            let error = principal.redact_error(error, &context.state.pool);
            let response = error.to_response_in(envelope, Some(request_id.as_str()));
            let bytes = response.body().size_hint().lower();
            exchange.refuse(error.status().as_u16(), bytes, error.reason(), error.outcome());
            response.map(Either::Left)
        }
    };
    headers::rewrite_response_headers(response.headers_mut(), &request_id);
    principal.rate_limit_status.write(response.headers_mut());
    context.state.access.cors().apply(origin.as_ref(), response.headers_mut());
    response
}

/// Reads and checks the request, waits for admission, and sends the request to backends until a
/// response has begun or the request fails.
async fn forward<B: IncomingBody>(
    context: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    configured: Option<&ConfiguredRoute>,
    request: Request<B>,
) -> Result<(Response<PrefetchedBody<BackendBody>>, Lease), GatewayError> {
    let (mut head, body) = request.into_parts();
    // The permit and the body are dropped when this function returns.
    let mut memory_permit = context.state.body_memory.empty_permit();
    let original_body =
        body::receive_body(&context.settings, exchange, &head, body, &mut memory_permit).await?;
    let record = exchange.record();
    let fields = body::peek_request(&head, &original_body, record.api)?;
    record.options = request_options(&context.settings, &head.headers, &fields);
    let route = allowed_model_route(context, principal, record, &fields)?;
    if let Some(log) = &context.state.recording.start_log {
        log.on_start(record, clock::now());
    }
    let (access, pool) = (&context.state.access, &context.state.pool);
    let mut control_check = EngineControlCheck::check(
        access,
        principal,
        route.permissions,
        record,
        &fields,
        &original_body,
    )?;
    let continued_at = match &fields.parameters.previous_response {
        Some(id) if record.api == Some(Api::Responses) => {
            access.find_stored_response(id, principal, pool)?
        }
        _ => None,
    };
    let salt = control_check.salt.as_deref();
    let prompt = features::hash_prompt(&fields, &route, salt, &original_body);
    let (api, edits) = (record.api, take(&mut control_check.edits));
    let body =
        UpstreamBody::new(original_body.clone(), api, &head.headers, &fields, &route, edits)?
            .with_usage_sampling(record.request_id.as_str());
    record.options.usage_requested = body.requests_usage_event();
    memory_permit.add(body.edited_copy_bytes())?;
    let requirements = BackendRequirements {
        model: fields.model.as_deref(),
        prompt: &prompt,
        is_stream: fields.stream,
        backend: continued_at.as_ref(),
        session: features::session_hash(&head.headers, &context.settings.session_headers, &fields),
        seed: fastrand::u64(..),
    };
    sample_request(context, record, &fields, requirements, &original_body);
    let deadlines = deadline::request_deadlines(
        record,
        &head.headers,
        route.policy.first_output.or(context.settings.first_output_timeout),
        configured
            .and_then(|configured| configured.total)
            .or(route.policy.total)
            .or(context.settings.total_timeout),
    );
    let lease = wait_for_lease(context, record, &head.headers, requirements).await?;
    let is_explained = routing_headers::is_requested(&head.headers)
        && control_check.allow(Permission::RoutingHeaders);
    control_check.strip_headers(&mut head.headers);
    apply_route_policy(exchange.policy(), &route.policy, deadlines);
    let prepared = PreparedRequest {
        head: &head,
        fields: &fields,
        body,
        requirements,
        deadline: deadlines.first_output,
        backend_model: route.served_as.as_deref().or(requirements.model),
        is_lookup: false,
        response_headers_timeout: route.policy.response_headers,
    };
    let (mut response, lease) = relay::send(context, exchange, prepared, lease).await?;
    routing_headers::write(response.headers_mut(), exchange.record(), is_explained);
    Ok((response, lease))
}

/// The options of the record, from the fields and the headers of the request.
fn request_options(
    settings: &RequestSettings,
    headers: &HeaderMap,
    fields: &RequestFields,
) -> RequestOptions {
    RequestOptions {
        stream: fields.stream,
        max_tokens: fields.max_tokens,
        n: fields.n,
        parameters: fields.parameters.clone(),
        forbids_store: fields.forbids_store,
        messages: (fields.identity.messages > 0).then_some(fields.identity.messages),
        identity: settings.identities.read(headers, fields),
        ..RequestOptions::default()
    }
}

/// The route of the model that the request names. Records the label of the model. Fails if the
/// principal may not use the model.
fn allowed_model_route(
    context: &ProxyContext,
    principal: &Principal,
    record: &mut RequestRecord,
    fields: &RequestFields,
) -> Result<ModelRoute, GatewayError> {
    let routes = context.state.pool.routes();
    let route = routes.lookup(fields.model.as_deref()).clone();
    record.model = route.label.clone();
    principal.check_model_access(fields.model.as_deref(), &routes)?;
    Ok(route)
}

/// Decides whether the trace capture and the payload log record a request that generates text.
fn sample_request(
    context: &ProxyContext,
    record: &mut RequestRecord,
    fields: &RequestFields,
    requirements: BackendRequirements<'_>,
    body: &Bytes,
) {
    if !record.api.is_some_and(Api::generates) {
        return;
    }
    let recording = &context.state.recording;
    record.captured = features::sample_for_capture(
        recording.capture_ratio,
        requirements.prompt,
        requirements.session,
        fastrand::u64(..),
    );
    if let Some(sampling) = recording.payload_sampling {
        features::sample_payload(sampling, fields, body, fastrand::u64(..), record);
    }
}

/// Waits for admission and returns the lease on a backend. A request that continues a stored
/// response does not wait in the queue: no other backend can serve it, so it would hold up others.
async fn wait_for_lease(
    context: &ProxyContext,
    record: &mut RequestRecord,
    headers: &HeaderMap,
    requirements: BackendRequirements<'_>,
) -> Result<(Lease, Arc<RoutingDecision>), GatewayError> {
    let ProxyState { admission, pool, .. } = &context.state;
    if requirements.backend.is_some() {
        return pool.lease(requirements, &[], clock::now());
    }
    let tenant = record.caller.as_ref().map(|identity| &*identity.tenant);
    let flow_key = admission.flow_key(headers, record.client, &record.tier, tenant);
    admission.admit(requirements, flow_key, &mut record.timings).await
}

/// Sets the deadlines of the request and the timeouts and the truncation handling of its route in
/// the policy of a stream.
fn apply_route_policy(
    stream_policy: &mut StreamPolicy,
    route: &routes::RoutePolicy,
    deadlines: RequestDeadlines,
) {
    stream_policy.first_output_by = deadlines.first_output.map(FirstOutputDeadline::at);
    stream_policy.ends_by = deadlines.end;
    stream_policy.idle = route.idle;
    stream_policy.rules.on_truncation =
        route.on_truncation.unwrap_or(stream_policy.rules.on_truncation);
}
