//! The steps on a request that do not depend on whether the gateway reads its body.

use super::access::Principal;
use super::context::{ProxyContext, ProxyState, RequestSettings};
use super::request::deadline::{self, FirstOutputDeadline, RequestDeadlines};
use super::request::features;
use crate::backend::Lease;
use crate::backend::pool::BackendRequirements;
use crate::backend::routes::{self, ModelRoute};
use bytes::Bytes;
use http::HeaderMap;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::error::GatewayError;
use tokenweir_core::observe::StreamPolicy;
use tokenweir_core::openai::Api;
use tokenweir_core::openai::request_fields::RequestFields;
use tokenweir_core::record::{RequestOptions, RequestRecord, RoutingDecision};

/// The options of the record, from the fields and the headers of the request.
pub(super) fn request_options(
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
pub(super) fn allowed_model_route(
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

/// Writes the log line at the start of the request, if it is enabled.
pub(super) fn log_start(context: &ProxyContext, record: &RequestRecord) {
    if let Some(log) = &context.state.recording.start_log {
        log.on_start(record, clock::now());
    }
}

/// Decides whether the trace capture and the payload log record a request that generates text.
pub(super) fn sample_request(
    context: &ProxyContext,
    record: &mut RequestRecord,
    fields: &RequestFields,
    requirements: BackendRequirements<'_>,
    body: &Bytes,
) {
    if !record.api.is_some_and(Api::generates) {
        return;
    }
    record.fingerprint = Some(requirements.prompt.clone());
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
pub(super) async fn wait_for_lease(
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

/// The deadlines of the request: those of its configured route (`route_total`), or else of its model,
/// or else the global ones.
pub(super) fn request_deadlines(
    context: &ProxyContext,
    record: &RequestRecord,
    headers: &HeaderMap,
    policy: &routes::RoutePolicy,
    route_total: Option<Duration>,
) -> RequestDeadlines {
    let settings = &context.settings;
    let first_output = policy.first_output.or(settings.first_output_timeout);
    let total = route_total.or(policy.total).or(settings.total_timeout);
    deadline::request_deadlines(record, headers, first_output, total)
}

/// Sets the deadlines of the request and the timeouts and the truncation handling of its route in
/// the policy of a stream.
pub(super) fn apply_route_policy(
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
