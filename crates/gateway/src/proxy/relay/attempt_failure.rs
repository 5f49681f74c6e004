//! A failed attempt, with what the client gets if the request does not fail over.

use crate::backend::Backend;
use http::Response;
use std::borrow::Cow;
use std::time::Duration;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_net::client::SendError;
use tokenweir_net::resource_exhaustion;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::PrefetchedBody;
use tokenweir_routing::resilience::FailureKind;

/// A response of a backend whose head and first frames have been read.
pub(crate) type PrefetchedResponse = Response<PrefetchedBody<BackendBody>>;

/// The failure of an attempt, and what the client gets if the request cannot fail over.
pub(super) struct AttemptFailure {
    pub(super) kind: FailureKind,
    /// A description of the failure for logs and status pages.
    pub(super) message: Cow<'static, str>,
    /// The time in `Retry-After`, for which the backend should get no requests. `None`: the backend
    /// stated no time.
    pub(super) rest: Option<Duration>,
    /// The result for the client if the request cannot fail over: the response of the backend, or
    /// an error if the backend sent no response.
    pub(super) fallback: Result<Box<PrefetchedResponse>, GatewayError>,
}

impl AttemptFailure {
    /// A failure that a response of the backend shows. The client gets this response if the request
    /// cannot fail over.
    pub(super) fn of_response(kind: FailureKind, response: PrefetchedResponse) -> Self {
        let rest = headers::retry_after(response.headers(), clock::wall_time());
        Self { kind, message: kind.as_str().into(), rest, fallback: Ok(Box::new(response)) }
    }

    /// A failure without a response. The client gets `error` if the request cannot fail over.
    pub(super) fn without_response(
        kind: FailureKind,
        message: impl Into<Cow<'static, str>>,
        error: GatewayError,
    ) -> Self {
        Self { kind, message: message.into(), rest: None, fallback: Err(error) }
    }

    /// Reports the failure to the circuit breaker of the backend of the attempt.
    pub(super) fn apply_to(&self, backend: &Backend) {
        backend.on_failure(self.kind, &self.message, self.rest, clock::now());
    }
}

/// The failure of a request that was not sent, or that has no response head.
pub(super) fn send_failure(error: &SendError) -> AttemptFailure {
    let (kind, gateway_error) = match error {
        SendError::Connect(_) => (FailureKind::Unreachable, GatewayError::NoBackend),
        SendError::Exhausted(problem) => {
            resource_exhaustion::warn_rate_limited(problem);
            (FailureKind::GatewayExhausted, GatewayError::Exhausted)
        }
        SendError::StaleConnection { .. } | SendError::Closed(_) => {
            (FailureKind::Died, GatewayError::Closed)
        }
        SendError::InvalidResponse(_) => (FailureKind::Garbage, GatewayError::Garbage),
        // Reading the body from the client failed. This happens only to a request whose body is
        // forwarded unread, and `unread.rs` handles that error before it calls this function.
        SendError::RequestBody(_) => (FailureKind::GatewayExhausted, GatewayError::IncompleteBody),
        SendError::Timeout(limit) => (
            FailureKind::ResponseHeadTimeout,
            GatewayError::ResponseHeadTimeout { seconds: limit.as_secs() },
        ),
    };
    AttemptFailure::without_response(kind, error.to_string(), gateway_error)
}
