//! Requests that an option takes over from the proxy.

use super::accept::RecordedRequest;
use super::context::ProxyContext;
use super::handle::handle_request;
use super::option::{RequestOptions, TakenRequest};
use super::request::body::{self, IncomingBody};
use super::response::{EarlyResponse, ProxyResponseBody};
use http::{HeaderMap, Request, Response, request};
use http_body_util::Full;
use std::sync::Arc;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::ResponseAbortHandle;

/// Lets an option take over a request by its head. `None`: the proxy handles the request.
pub fn take_over<'a>(
    context: &'a ProxyContext,
    recorded: &mut RecordedRequest,
    headers: &HeaderMap,
) -> Option<Box<dyn TakenRequest + 'a>> {
    RequestOptions::of(context).find_map(|option| option.take_over(recorded, headers))
}

/// Receives the body of a request that an option has taken over, and lets the option respond.
pub async fn respond_taken<B: IncomingBody>(
    taken: Box<dyn TakenRequest + '_>,
    context: &Arc<ProxyContext>,
    mut recorded: RecordedRequest,
    abort: ResponseAbortHandle,
    early: &EarlyResponse,
    incoming: Request<B>,
) -> Response<ProxyResponseBody> {
    let (mut head, body) = incoming.into_parts();
    let RecordedRequest { exchange, principal, .. } = &mut recorded;
    let memory = &context.state.body_memory;
    let receiving =
        body::receive_body(&context.settings, memory, principal, exchange, &mut head, body);
    match receiving.await {
        Ok(body) => {
            let request = Request::from_parts(head, body);
            taken.respond(context, recorded, abort, early, request).await
        }
        Err(error) => refuse(context, recorded, abort, head, error).await,
    }
}

/// Answers a request with an error.
pub async fn refuse(
    context: &Arc<ProxyContext>,
    mut recorded: RecordedRequest,
    abort: ResponseAbortHandle,
    head: request::Parts,
    error: GatewayError,
) -> Response<ProxyResponseBody> {
    recorded.permit = Err(error);
    let request = Request::from_parts(head, Full::default());
    handle_request(context, recorded, abort, &EarlyResponse::default(), request).await
}
