//! A failed attempt, and the result for the client if the request does not fail over.

use crate::backend::{Backend, Lease};
use crate::proxy::request::ResponseDeadline;
use crate::proxy::response::{Forwarded, PrefetchedResponse};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use std::borrow::Cow;
use std::time::Duration;
use tokenweir_net::client::SendError;
use tokenweir_net::resource_exhaustion;
use tokenweir_protocol::{clock, headers};
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::FailoverDenialReason;
use tokenweir_routing::resilience::FailureKind;

/// The response of a backend, with the lease on the backend, or the error for the client.
pub(crate) type ForwardResult = Result<Forwarded, GatewayError>;

/// The failure of an attempt, and the result for the client if the request cannot fail over.
pub struct AttemptFailure {
    /// Decides about failover and the effect on the circuit breaker.
    pub kind: FailureKind,
    /// A description of the failure for logs and status pages.
    message: Cow<'static, str>,
    /// The time in `Retry-After`, for which the backend should get no requests. `None`: the backend
    /// stated no time.
    pub(crate) rest: Option<Duration>,
    /// The result for the client if the request cannot fail over: the response of the backend, or
    /// an error if the backend sent no response.
    pub(crate) fallback: Result<PrefetchedResponse, GatewayError>,
}

/// A failed attempt with the lease on its backend.
pub struct FailedAttempt {
    /// Why the attempt failed.
    pub failure: AttemptFailure,
    /// The lease on the backend that failed.
    pub lease: Lease,
    /// Whether the backend may get the request again, because only the gateway's additions to the request made
    /// the attempt fail.
    pub keeps_backend: bool,
}

impl AttemptFailure {
    /// A failure that a response of the backend shows. The client gets this response if the request
    /// cannot fail over.
    pub(crate) fn of_response(kind: FailureKind, response: PrefetchedResponse) -> Self {
        let rest = headers::retry_after(response.headers(), clock::wall_time());
        Self {
            kind,
            message: kind.as_str().into(),
            rest,
            fallback: Ok(response),
        }
    }

    /// A failure without a response. The client gets `error` if the request cannot fail over.
    fn without_response(
        kind: FailureKind,
        message: impl Into<Cow<'static, str>>,
        error: GatewayError,
    ) -> Self {
        Self {
            kind,
            message: message.into(),
            rest: None,
            fallback: Err(error),
        }
    }

    /// The failure of a request that was not sent, or that has no response head.
    pub fn of_send(error: &SendError) -> Self {
        let (kind, client_error) = match error {
            SendError::Connect(_) => (FailureKind::Unreachable, GatewayError::NoBackend),
            SendError::Exhausted(problem) => {
                resource_exhaustion::warn_rate_limited(problem);
                (FailureKind::GatewayExhausted, GatewayError::Exhausted)
            }
            SendError::StaleConnection { .. } | SendError::Closed(_) => {
                (FailureKind::Died, GatewayError::Closed)
            }
            SendError::InvalidResponse(_) => (FailureKind::Garbage, GatewayError::Garbage),
            // Reading the body from the client failed, which is possible only for a body that is forwarded
            // unread. `unread.rs` handles that error before it calls this function.
            SendError::RequestBody(_) => {
                (FailureKind::GatewayExhausted, GatewayError::IncompleteBody)
            }
            SendError::Timeout(limit) => {
                let seconds = limit.as_secs();
                (
                    FailureKind::ResponseHeadTimeout,
                    GatewayError::ResponseHeadTimeout { seconds },
                )
            }
        };
        Self::without_response(kind, error.to_string(), client_error)
    }

    /// The failure of a request whose deadline passed before the first output.
    pub(crate) fn of_deadline(deadline: ResponseDeadline) -> Self {
        let kind = deadline.failure;
        Self::without_response(kind, kind.as_str(), deadline.error())
    }

    /// The failure of an attempt whose backend was declared down.
    pub(crate) fn of_down_backend() -> Self {
        let kind = FailureKind::Down;
        Self::without_response(kind, kind.as_str(), GatewayError::NoBackend)
    }

    /// The response that shows the failure. `None`: the backend sent no response.
    pub fn response(&self) -> Option<&PrefetchedResponse> {
        self.fallback.as_ref().ok()
    }

    /// Whether the cause may be either the backend or the client. The answer of another backend shows which.
    pub(crate) fn is_refusal(&self) -> bool {
        self.kind.is_judged_by_peers() && self.fallback.is_ok()
    }

    /// Replaces the kind of the failure by a more precise one.
    pub fn set_kind(&mut self, kind: FailureKind) {
        self.kind = kind;
        self.message = kind.as_str().into();
    }

    /// Reports the failure to the circuit breaker of the backend of the attempt.
    pub(crate) fn apply_to(&self, backend: &Backend) {
        backend.on_failure(self.kind, &self.message, self.rest, clock::now());
    }

    /// The result for the client without another attempt: the response of the backend, or an error.
    /// `reason` is why the request does not fail over.
    pub(crate) fn into_result(
        self,
        exchange: &mut Exchange,
        lease: Lease,
        reason: FailoverDenialReason,
    ) -> ForwardResult {
        match self.fallback {
            Ok(mut response) => {
                if response.status() == StatusCode::SERVICE_UNAVAILABLE {
                    let headers = response.headers_mut();
                    headers
                        .entry(RETRY_AFTER)
                        .or_insert(HeaderValue::from_static("1"));
                }
                Ok(Forwarded::new(response, lease))
            }
            Err(error) => {
                exchange.discard_attempt(self.kind.as_str());
                let is_poison = reason == FailoverDenialReason::PoisonRequest;
                Err(if is_poison {
                    GatewayError::Poison
                } else {
                    error
                })
            }
        }
    }
}

impl FailedAttempt {
    /// Creates a failed attempt. Its backend does not get the request again, unless a step sets
    /// `keeps_backend`.
    pub(crate) const fn new(failure: AttemptFailure, lease: Lease) -> Self {
        Self {
            failure,
            lease,
            keeps_backend: false,
        }
    }
}
