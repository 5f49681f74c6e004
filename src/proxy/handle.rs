//! Handles one accepted request: reads its body, sends the request to a backend, and makes the head
//! of the response.

use super::accept::{AcceptedRequest, RecordedRequest};
use super::access::Principal;
use super::context::ProxyContext;
use super::lookup;
use super::relay::{self, PreparedRequest};
use super::request::body::{self, IncomingBody};
use super::request::configured_routes::ConfiguredRoute;
use super::request::deadline::{self, FirstOutputDeadline};
use super::request::engine_control::EngineControlCheck;
use super::request::features;
use super::request::upstream_body::UpstreamBody;
use super::routing_headers;
use crate::backend::Lease;
use crate::backend::pool::BackendRequirements;
use crate::backend::routes;
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Body;
use std::mem::take;
use tokenweir_core::access::ConcurrencyPermit;
use tokenweir_core::clock;
use tokenweir_core::error::{ErrorEnvelope, GatewayError};
use tokenweir_core::headers;
use tokenweir_core::observe::{
    Exchange, ObservedBody, PrefetchedBody, ResponseAbortHandle, StreamPolicy,
};
use tokenweir_core::openai::Api;
use tokenweir_core::openai::engine_control::Permission;
use tokenweir_core::openai::route::ApiRoute;
use tokenweir_core::record::RequestOptions;
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
    let body =
        body::receive_body(&context.settings, exchange, &head, body, &mut memory_permit).await?;
    let record = exchange.record();
    let fields = body::peek_request(&head, &body, record.api)?;
    record.options = RequestOptions {
        stream: fields.stream,
        max_tokens: fields.max_tokens,
        n: fields.n,
        parameters: fields.parameters.clone(),
        forbids_store: fields.forbids_store,
        messages: (fields.identity.messages > 0).then_some(fields.identity.messages),
        identity: context.settings.identities.read(&head.headers, &fields),
        ..RequestOptions::default()
    };
    let route = {
        let routes = context.state.pool.routes();
        let route = routes.lookup(fields.model.as_deref()).clone();
        record.model = route.label.clone();
        principal.check_model_access(fields.model.as_deref(), &routes)?;
        route
    };
    let access = &context.state.access;
    let mut control_check =
        EngineControlCheck::check(access, principal, route.permissions, record, &fields, &body)?;
    let continued_at = match &fields.parameters.previous_response {
        Some(id) if record.api == Some(Api::Responses) => {
            access.find_stored_response(id, principal, &context.state.pool)?
        }
        _ => None,
    };
    let prompt = features::hash_prompt(&fields, &route, control_check.salt.as_deref(), &body);
    let original_body = body.clone();
    let (api, edits) = (record.api, take(&mut control_check.edits));
    let body = UpstreamBody::new(body, api, &head.headers, &fields, &route, edits)?
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
    if record.api.is_some_and(Api::generates) {
        record.captured = features::sample_for_capture(
            context.state.recording.capture_ratio,
            &prompt,
            requirements.session,
            fastrand::u64(..),
        );
        if let Some(sampling) = context.state.recording.payload_sampling {
            features::sample_payload(sampling, &fields, &original_body, fastrand::u64(..), record);
        }
    }
    let first_output_timeout = route.policy.first_output.or(context.settings.first_output_timeout);
    let total = configured.and_then(|configured| configured.total).or(route.policy.total);
    let total = total.or(context.settings.total_timeout);
    let deadline =
        deadline::first_output_deadline(record, &head.headers, first_output_timeout, total);
    let ends_by = total.and_then(|total| record.timings.accepted.checked_add(total));
    let tenant = record.caller.as_ref().map(|identity| &*identity.tenant);
    let flow_key =
        context.state.admission.flow_key(&head.headers, record.client, &record.tier, tenant);
    let lease = match requirements.backend {
        // No other backend could serve the request, so a wait in the queue would hold up others.
        Some(_) => context.state.pool.lease(requirements, &[], clock::now())?,
        None => context.state.admission.admit(requirements, flow_key, &mut record.timings).await?,
    };
    let is_explained = routing_headers::is_requested(&head.headers)
        && control_check.allow(Permission::RoutingHeaders);
    control_check.strip_headers(&mut head.headers);
    apply_route_policy(exchange.policy(), &route.policy, deadline);
    exchange.policy().ends_by = ends_by;
    let response_headers_timeout = route.policy.response_headers;
    let backend_model = route.served_as.as_deref().or(requirements.model);
    let prepared = PreparedRequest {
        head: &head,
        fields: &fields,
        body,
        requirements,
        deadline,
        backend_model,
        is_lookup: false,
        response_headers_timeout,
    };
    let (mut response, lease) = relay::send(context, exchange, prepared, lease).await?;
    routing_headers::write(response.headers_mut(), exchange.record(), is_explained);
    Ok((response, lease))
}

/// Sets the deadline of the first output in the policy of a stream, and the idle timeout and the
/// truncation handling of the route.
fn apply_route_policy(
    stream_policy: &mut StreamPolicy,
    route: &routes::RoutePolicy,
    deadline: Option<FirstOutputDeadline>,
) {
    stream_policy.first_output_by = deadline.map(FirstOutputDeadline::at);
    stream_policy.idle = route.idle;
    stream_policy.rules.on_truncation =
        route.on_truncation.unwrap_or(stream_policy.rules.on_truncation);
}
