//! The contract of the steps between the attempts of a request, and what follows a failed attempt.

use super::failure::{AttemptFailure, FailedAttempt};
use super::prepared::PreparedRequest;
use super::send::OutboundAttempt;
use crate::proxy::admission::LeasedBackend;
use crate::proxy::response::BodySource;
use futures_util::future::BoxFuture;
use http::response;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::FailoverDenialReason;

/// What an option does between the attempts of a request. One value serves all attempts of one request, and
/// does nothing in the phases that it does not implement.
pub trait AttemptStep: Send {
    /// Prepares an attempt. The request is sent to the leased backend next. `None`: nothing is to be done.
    fn before<'a>(
        &'a mut self,
        _exchange: &'a mut Exchange,
        _attempt: &'a mut OutboundAttempt<'_>,
    ) -> Option<BoxFuture<'a, ()>> {
        None
    }

    /// Sees the head of the response to an attempt as the backend sent it, whatever its status is.
    fn on_head(
        &mut self,
        _exchange: &mut Exchange,
        _attempt: &OutboundAttempt<'_>,
        _head: &response::Parts,
    ) {
    }

    /// Learns from a failed attempt. The step may name the failure more precisely for what follows.
    fn after_failure(&mut self, _exchange: &mut Exchange, _failed: &mut FailedAttempt) {}

    /// Learns that the last attempt has failed, and that its failure ends the request for this reason.
    fn end_with_failure(
        &mut self,
        _exchange: &mut Exchange,
        _failure: &AttemptFailure,
        _reason: FailoverDenialReason,
    ) {
    }

    /// What replaces the body of the response if its backend cannot complete it. `None`: nothing does.
    fn body_source(&self, _exchange: &Exchange, _: &PreparedRequest<'_>) -> Option<BodySource> {
        None
    }
}

/// What follows a failed attempt.
pub(crate) enum Next {
    /// An attempt at another backend, if the limits of failover allow one.
    Failover,
    /// The same. If the request has tried all backends that can serve it, the step searches for one.
    Search,
    /// The end of the request, for this reason.
    End(FailoverDenialReason),
}

/// The result of a search for a backend.
pub(crate) enum Search {
    /// Another backend, which the request gets when it has left the failed attempt.
    Found(LeasedBackend, Box<FailedAttempt>),
    /// The request has left the failed attempt and waited, for a backend or until this error.
    Waited(Result<LeasedBackend, GatewayError>),
    /// The step does not apply to the failed attempt, or there is no backend.
    NotFound(Box<FailedAttempt>),
}

impl Next {
    /// The decision of two steps. That of the later step takes precedence.
    pub(crate) fn then(self, later: Self) -> Self {
        if matches!(later, Self::Failover) {
            self
        } else {
            later
        }
    }
}
