//! The response of a backend that is forwarded to the client.

use super::response_body::{ProxyResponse, ProxyResponseBody, ResponseGuard};
use crate::backend::Lease;
use http::Response;
use http::header::CONTENT_LENGTH;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_request::access::ConcurrencyPermit;
use tokenweir_request::observe::{Continue, Exchange, ObservedBody, PrefetchedBody};

/// A response of a backend whose head and first frames have been read. Boxed, because each step between the attempt
/// and the client moves it.
pub(crate) type PrefetchedResponse = Box<Response<PrefetchedBody<BackendBody>>>;

/// Finds the body of another backend for a response that its own backend cannot complete.
pub type BodySource = Box<dyn Continue<BackendBody, ResponseGuard> + Send>;

/// The response of a backend that is forwarded to the client.
pub(crate) struct Forwarded {
    pub response: PrefetchedResponse,
    lease: Lease,
    /// The source of another body if the backend fails. `None`: the response then ends.
    pub body_source: Option<BodySource>,
}

impl Forwarded {
    pub(crate) const fn new(response: PrefetchedResponse, lease: Lease) -> Self {
        Self {
            response,
            lease,
            body_source: None,
        }
    }

    /// The response for the client, whose body owns the exchange, the lease and the permit.
    pub(crate) fn into_response(
        self,
        exchange: Exchange,
        permit: Option<ConcurrencyPermit>,
    ) -> ProxyResponse {
        let Self {
            response,
            lease,
            body_source,
        } = self;
        let (mut head, body) = response.into_parts();
        if exchange.may_change_length() {
            head.headers.remove(CONTENT_LENGTH);
        }
        let guard = ResponseGuard { lease, permit };
        let mut body = ObservedBody::new(body, exchange, guard);
        body.set_replacement(body_source);
        Box::new(Response::from_parts(
            head,
            ProxyResponseBody::Observed(body),
        ))
    }
}
