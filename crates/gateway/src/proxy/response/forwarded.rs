//! The response of a backend that the client gets.

use super::response_body::{ProxyResponseBody, ResponseGuard};
use crate::backend::Lease;
use http::Response;
use http::header::CONTENT_LENGTH;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_request::access::ConcurrencyPermit;
use tokenweir_request::observe::{Continue, Exchange, ObservedBody, PrefetchedBody};

/// A response of a backend whose head and first frames have been read.
pub(crate) type PrefetchedResponse = Response<PrefetchedBody<BackendBody>>;

/// Continues the body of an interrupted response with the stream of another backend.
pub(crate) type Continuer = Box<dyn Continue<BackendBody, ResponseGuard> + Send>;

/// The response of a backend that the client gets.
pub(crate) struct Forwarded {
    pub(crate) response: PrefetchedResponse,
    lease: Lease,
    /// `None`: the response ends if its backend fails.
    pub(crate) continuer: Option<Continuer>,
}

impl Forwarded {
    pub(crate) const fn new(response: PrefetchedResponse, lease: Lease) -> Self {
        Self { response, lease, continuer: None }
    }

    /// The response for the client, whose body owns the exchange, the lease and the permit.
    pub(crate) fn into_response(
        self,
        exchange: Exchange,
        permit: Option<ConcurrencyPermit>,
    ) -> Response<ProxyResponseBody> {
        let Self { mut response, lease, continuer } = self;
        if exchange.may_change_length() {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        let guard = ResponseGuard { lease, permit };
        response.map(|body| {
            let observed = ObservedBody::new(body, exchange, guard);
            ProxyResponseBody::Observed(observed.with_replacement(continuer))
        })
    }
}
