//! Handles one accepted request: forwards it to a backend, and completes the head of the response.

use super::ProxyContext;
use super::accept::RecordedRequest;
use super::attempt::ForwardResult;
use super::forward::{InboundRequest, forward};
use super::request::IncomingBody;
use super::response::{EarlyResponse, ProxyResponse, ProxyResponseBody, ResponseHeaders};
use http::Request;
use http_body::Body;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use tokenweir_protocol::headers::RequestId;
use tokenweir_request::error::{ErrorEnvelope, GatewayError};
use tokenweir_request::observe::{Exchange, ResponseAbortHandle};

/// Handles one [accepted](super::accept_request) request and returns its response. `abort_handle` aborts the
/// response if the client does not read it. `early` is the beginning of the response, which can be sent before
/// a backend is decided.
///
/// The request is split into its parts before the `async` block, because the future of an `async fn` would
/// reserve memory for the request and again for its parts.
pub fn handle_request<B: IncomingBody + Send + 'static>(
    context: &Arc<ProxyContext>,
    recorded: Box<RecordedRequest>,
    abort_handle: ResponseAbortHandle,
    early: &EarlyResponse,
    request: Request<B>,
) -> impl Future<Output = ProxyResponse> {
    let (mut head, body) = request.into_parts();
    async move {
        let mut exchange = recorded.exchange.with_abort_handle(abort_handle);
        let principal = &recorded.principal;
        let envelope = ErrorEnvelope::for_path(head.uri.path());
        let request_id = exchange.record().request_id.clone();
        let headers = ResponseHeaders {
            request_id: &request_id,
            origin: recorded.origin.as_ref(),
            cors: &context.state.access.cors,
            principal,
        };
        let result = match recorded.permit {
            Err(error) => Err(error),
            Ok(permit) => {
                let inbound = InboundRequest {
                    context,
                    principal,
                    head: &mut head,
                    body,
                };
                let configured = recorded.configured.as_deref();
                let forwarding = forward(inbound, &mut exchange, recorded.route, configured, early);
                let forwarded = begin_early(pin!(forwarding), early, &headers).await;
                forwarded.map(|forwarded| (forwarded, permit))
            }
        };
        let mut response = match result {
            Ok((forwarded, permit)) => forwarded.into_response(exchange, permit),
            Err(error) => {
                let error = principal.redact_error(error, &context.state.pool);
                refuse(exchange, &error, envelope, &request_id)
            }
        };
        headers.complete_response(&mut response);
        response
    }
}

/// Awaits the response of a backend. If bytes for the client are due earlier, begins the response with these
/// headers.
fn begin_early(
    mut forwarding: Pin<&mut impl Future<Output = ForwardResult>>,
    early: &EarlyResponse,
    headers: &ResponseHeaders<'_>,
) -> impl Future<Output = ForwardResult> {
    poll_fn(move |cx| {
        let result = forwarding.as_mut().poll(cx);
        if result.is_pending() {
            early.on_pending(cx, |media_type| headers.early(media_type));
        }
        result
    })
}

fn refuse(
    exchange: Exchange,
    error: &GatewayError,
    envelope: ErrorEnvelope,
    request_id: &RequestId,
) -> ProxyResponse {
    let response = error.to_response_in(envelope, Some(request_id.as_str()));
    let bytes = response.body().size_hint().lower();
    exchange.refuse(
        error.status().as_u16(),
        bytes,
        error.reason(),
        error.outcome(),
    );
    ProxyResponseBody::complete(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::Full;

    /// The size of the future that a function returns, in bytes.
    fn future_bytes<F: Future>(
        _: impl Fn(
            &'static Arc<ProxyContext>,
            Box<RecordedRequest>,
            ResponseAbortHandle,
            &'static EarlyResponse,
            Request<Full<Bytes>>,
        ) -> F,
    ) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_future_takes_little_memory() {
        let bytes = future_bytes(handle_request);
        assert!(bytes <= 4096, "{bytes} bytes");
    }
}
