//! Forwards a request whose body the gateway reads: checks the request, waits for admission, and sends the
//! request to a backend.

use super::inbound::InboundRequest;
use super::route::find_route;
use crate::backend::pool::BackendRequirements;
use crate::backend::routes::ModelRoute;
use crate::proxy::attempt::{ForwardResult, PreparedRequest};
use crate::proxy::request::{
    EngineControlCheck, HeldBody, IncomingBody, PromptBody, ReadRequest, RequestDeadlines,
    RequestSettings, UpstreamBody, body, features,
};
use crate::proxy::response::EarlyResponse;
use crate::proxy::steps::Steps;
use crate::proxy::{ProxyContext, relay};
use http::request;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::openai::{Api, PromptBytes, RequestFields, has_url_member};
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::RequestRecord;
use tokenweir_routing::PromptFingerprint;

/// Reads and checks the request, waits for admission, and sends the request to backends until a response has
/// begun or the request fails. `route_total`: the configured route's timeout of the whole request. `None`: the
/// route sets none.
pub(super) async fn forward<B: IncomingBody>(
    inbound: InboundRequest<'_, B>,
    exchange: &mut Exchange,
    early: &EarlyResponse,
    route_total: Option<Duration>,
) -> ForwardResult {
    let InboundRequest {
        context,
        principal,
        head,
        body,
    } = inbound;
    let state = &context.state;
    let settings = &context.settings;
    // The body is dropped when this function returns.
    let memory = &state.body_memory;
    let original = body::receive_body(settings, memory, principal, exchange, head, body).await?;
    let fields = read_fields(exchange.record(), settings, head, &original)?;
    let route = find_route(context, principal, exchange, head, &fields, &original).await?;
    let read = ReadRequest {
        principal,
        route: &route,
        head,
        fields: &fields,
    };
    let mut checked = check(exchange, context, &read, original)?;
    allow_early_response(exchange, &fields, early);
    let record = exchange.record();
    let requirements = checked.target.requirements(record, &fields, &route);
    state
        .recording
        .sample(record, &fields, requirements, checked.body.original());
    let headers = &mut head.headers;
    let mut leased = state.admission.lease(record, headers, requirements).await?;
    let deadlines = RequestDeadlines::new(record, headers, settings, &route.policy, route_total);
    if let Some(admission) = leased.0.admission.take() {
        exchange.admit(admission);
    }
    deadlines.apply(&route.policy, exchange.policy());
    checked.control.strip_headers(headers);
    let prepared = PreparedRequest {
        context,
        head,
        fields: &fields,
        body: &checked.body,
        requirements: &requirements,
        deadlines: deadlines.attempt,
        backend_model: route.served_as.as_deref().or(requirements.model),
        is_lookup: false,
        early: Some(early),
        response_headers_timeout: route.policy.response_headers,
    };
    let forwarded = relay::send(exchange, &prepared, &mut checked.steps, leased).await?;
    Ok(checked.steps.complete(exchange, &prepared, forwarded))
}

/// Reads the fields of the body, and records the options of the request.
fn read_fields(
    record: &mut RequestRecord,
    settings: &RequestSettings,
    head: &request::Parts,
    body: &[u8],
) -> Result<Box<RequestFields>, GatewayError> {
    let fields = body::peek_request(head, body, record.api)?;
    record.options = settings.options(&head.headers, &fields);
    record.options.has_tools = fields.prompt.has_tools();
    record.options.prompt_bytes = match record.api {
        // A form uploads audio.
        Some(Api::Audio) => PromptBytes {
            media: body.len() as u64,
            ..PromptBytes::default()
        },
        _ => PromptBytes::of_json(&fields.prompt, body),
    };
    let has_media = record.options.prompt_bytes.media > 0 || has_url_member(body);
    record.options.has_media = has_media;
    Ok(fields)
}

/// A request that has passed all checks and may be sent to a backend.
struct CheckedRequest {
    control: EngineControlCheck,
    target: RequestTarget,
    steps: Steps,
    body: UpstreamBody,
}

/// The requirements of a request on its backend that are not fields of its body.
struct RequestTarget {
    prompt: Arc<PromptFingerprint>,
    /// A hash of the session id. `None`: the request has no session.
    session: Option<u64>,
    /// The only backend that may serve the request, because it has the stored response that the request
    /// continues.
    stored_at: Option<BackendId>,
    /// The limit of output tokens that the gateway sets. `None`: the limit of the client applies.
    default_max_tokens: Option<u64>,
}

/// Checks which fields and models the request may use, and builds the body for the backends.
fn check(
    exchange: &mut Exchange,
    context: &ProxyContext,
    request: &ReadRequest<'_>,
    original: HeldBody,
) -> Result<CheckedRequest, GatewayError> {
    let ProxyContext {
        state, settings, ..
    } = context;
    let pool = &state.pool;
    let record = exchange.record();
    state.recording.log_start(record);
    let mut control = EngineControlCheck::check(&state.access, record, request, &original)?;
    let priority = settings.tiers.priority(&record.tier);
    let ReadRequest {
        principal,
        route,
        fields,
        ..
    } = request;
    let caps = principal.cap_request(record, route, fields, &original, priority)?;
    control.edits.extend(caps.edits);
    let stored_at = state
        .stored_responses
        .locate_previous(record, request.principal, pool)?;
    let steps = Steps::plan(context, exchange, request, &original, &mut control);
    let record = exchange.record();
    let prompt_body = PromptBody::new(&original, record, request, pool);
    let prompt =
        features::hash_prompt(request, control.salt.as_deref(), &prompt_body, &pool.facets);
    let body = UpstreamBody::new(original, record, request, take(&mut control.edits))?;
    record.options.usage_requested = body.requests_usage_event();
    let headers = &request.head.headers;
    let session = settings.session_hash(headers, request.fields);
    let default_max_tokens = caps.max_tokens;
    let target = RequestTarget {
        prompt,
        session,
        stored_at,
        default_max_tokens,
    };
    Ok(CheckedRequest {
        control,
        target,
        steps,
        body,
    })
}

fn allow_early_response(exchange: &mut Exchange, fields: &RequestFields, early: &EarlyResponse) {
    if fields.stream {
        let api = exchange.record().api.unwrap_or(Api::Other);
        early.allow(api, exchange.policy().rules.keep_alive);
    }
}

impl RequestTarget {
    fn requirements<'a>(
        &'a self,
        record: &RequestRecord,
        fields: &'a RequestFields,
        route: &'a ModelRoute,
    ) -> BackendRequirements<'a> {
        BackendRequirements {
            model: route.name(fields.model.as_deref()),
            is_stream: fields.stream,
            backend: self.stored_at.as_ref(),
            path: record.route,
            max_tokens: output_limit(record.api, self.default_max_tokens.or(fields.max_tokens)),
            choices: features::saturating_u32(fields.n.unwrap_or(1)),
            session: self.session,
            ..BackendRequirements::none(&self.prompt, fastrand::u64(..))
        }
    }
}

/// The maximum number of output tokens of a choice that the request allows. 0: the request states none. `None`:
/// the API generates no text. `stated`: the number in the request.
fn output_limit(api: Option<Api>, stated: Option<u64>) -> Option<u32> {
    if !api.is_some_and(Api::generates) {
        return None;
    }
    Some(features::saturating_u32(stated.unwrap_or(0)))
}
