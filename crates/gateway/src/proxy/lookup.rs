//! Forwards a request about a stored response to the backend that has the response.
//!
//! If this gateway did not see the response begin, for example after a restart, it asks the backends
//! one after the other until one of them does not answer 404.

use super::access::Principal;
use super::context::ProxyContext;
use super::relay::{self, ForwardResult, PreparedRequest};
use super::request::body::{self, IncomingBody};
use super::request::deadline::AttemptDeadlines;
use super::request::upstream_body::UpstreamBody;
use crate::backend::pool::BackendRequirements;
use http::request;
use std::sync::Arc;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::request_fields::RequestFields;
use tokenweir_protocol::openai::route;
use tokenweir_request::observe::Exchange;
use tokenweir_routing::PromptFingerprint;

/// Reads the body of the request, which vLLM ignores, and sends the request to backends until one
/// has the stored response.
pub(super) async fn forward<B: IncomingBody>(
    context: &ProxyContext,
    principal: &Principal,
    exchange: &mut Exchange,
    (head, body): (&mut request::Parts, B),
) -> ForwardResult {
    let (state, settings) = (&context.state, &context.settings);
    let memory = &state.body_memory;
    let body = body::receive_body(settings, memory, principal, exchange, head, body).await?;
    let id = route::stored_response_id(head.uri.path()).unwrap_or_default();
    let backend = state.stored_responses.locate(id, principal, &state.pool)?;
    let (fields, prompt) = (RequestFields::default(), Arc::new(PromptFingerprint::default()));
    let requirements = BackendRequirements {
        backend: backend.as_ref(),
        ..BackendRequirements::none(&prompt, fastrand::u64(..))
    };
    let record = exchange.record();
    let lease = match requirements.backend {
        // The request waits while the only backend that has the response is unavailable.
        Some(_) => state.admission.lease(record, &head.headers, requirements).await?,
        None => state.pool.lease(requirements, &[], clock::now())?,
    };
    let model_route = state.pool.routes().lookup(None).clone();
    let prepared = PreparedRequest {
        context,
        head,
        fields: &fields,
        body: UpstreamBody::new(body, exchange.record(), head, &fields, &model_route, Vec::new())?,
        requirements: &requirements,
        deadlines: AttemptDeadlines::new(
            exchange.record(),
            &head.headers,
            None,
            settings.total_timeout,
        ),
        backend_model: None,
        is_lookup: true,
        early: None,
        response_headers_timeout: None,
    };
    relay::send(exchange, &prepared, lease).await
}
