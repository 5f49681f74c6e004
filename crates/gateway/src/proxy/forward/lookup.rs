//! Forwards a request about a stored response to the backend that has the response.
//!
//! If this gateway did not see the response begin, for example after a restart, it asks one backend after
//! another until a response is not 404.

use super::inbound::InboundRequest;
use crate::backend::pool::BackendRequirements;
use crate::proxy::attempt::{ForwardResult, PreparedRequest};
use crate::proxy::request::{AttemptDeadlines, IncomingBody, ReadRequest, UpstreamBody, body};
use crate::proxy::steps::Steps;
use crate::proxy::{ProxyContext, relay};
use std::sync::Arc;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::{RequestFields, route};
use tokenweir_request::observe::Exchange;
use tokenweir_routing::PromptFingerprint;

/// Reads the body of the request, which vLLM ignores. Sends the request to one backend after another until one
/// has the stored response.
pub(super) async fn forward<B: IncomingBody>(
    inbound: InboundRequest<'_, B>,
    exchange: &mut Exchange,
) -> ForwardResult {
    let InboundRequest {
        context,
        principal,
        head,
        body,
    } = inbound;
    let ProxyContext {
        state, settings, ..
    } = &**context;
    let memory = &state.body_memory;
    let body = body::receive_body(settings, memory, principal, exchange, head, body).await?;
    let id = route::stored_response_id(head.uri.path()).unwrap_or_default();
    let backend = state.stored_responses.locate(id, principal, &state.pool)?;
    let fields = RequestFields::default();
    let prompt = Arc::new(PromptFingerprint::default());
    let requirements = BackendRequirements {
        backend: backend.as_ref(),
        ..BackendRequirements::none(&prompt, fastrand::u64(..))
    };
    let record = exchange.record();
    let leased = match requirements.backend {
        // The request waits while the only backend with the response is unavailable.
        Some(_) => {
            state
                .admission
                .lease(record, &head.headers, requirements)
                .await?
        }
        None => state.pool.lease(requirements, &[], clock::now())?,
    };
    let route = state.pool.routes().lookup(None).clone();
    let request = ReadRequest {
        principal,
        route: &route,
        head,
        fields: &fields,
    };
    let record = exchange.record();
    let total = settings.total_timeout;
    let body = UpstreamBody::new(body, record, &request, Vec::new())?;
    let prepared = PreparedRequest {
        context,
        head,
        fields: &fields,
        body: &body,
        requirements: &requirements,
        deadlines: AttemptDeadlines::new(record, &head.headers, None, total),
        backend_model: None,
        is_lookup: true,
        early: None,
        response_headers_timeout: None,
    };
    relay::send(exchange, &prepared, &mut Steps::default(), leased).await
}
