//! The contract of the steps between the attempts of a request, and the decision after a failed attempt.

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

/// The work of an option between the attempts of a request. One value serves all attempts of one request. Each
/// method has a default that does nothing.
pub trait AttemptStep: Send {
    /// Prepares an attempt. After this, the request is sent to the leased backend. `None`: nothing to prepare.
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

    /// Records a failed attempt. The step may replace the kind of the failure by a more precise one.
    fn after_failure(&mut self, _exchange: &mut Exchange, _failed: &mut FailedAttempt) {}

    /// Called when the last attempt has failed and its failure ends the request for this reason.
    fn end_with_failure(
        &mut self,
        _exchange: &mut Exchange,
        _failure: &AttemptFailure,
        _reason: FailoverDenialReason,
    ) {
    }

    /// The source of another body if the backend cannot complete the response. `None`: the response then ends
    /// early.
    fn body_source(&self, _exchange: &Exchange, _: &PreparedRequest<'_>) -> Option<BodySource> {
        None
    }
}

/// The decision after a failed attempt.
pub(crate) enum Next {
    /// An attempt at another backend, if the limits of failover allow one.
    Failover,
    /// Like `Failover`. If the request has tried all backends that can serve it, the step searches for another
    /// one.
    Search,
    End(FailoverDenialReason),
}

/// The result of a search for a backend.
pub(crate) enum Search {
    /// Another backend. The failed attempt has not been ended yet.
    Found(LeasedBackend, Box<FailedAttempt>),
    /// The failed attempt has been ended. The search waited until a backend was leased or this error occurred.
    Waited(Result<LeasedBackend, GatewayError>),
    /// The step does not apply to the failed attempt, or there is no backend.
    NotFound(Box<FailedAttempt>),
}

impl Next {
    /// Combines the decisions of two steps. The decision of the later step takes precedence.
    pub(crate) fn then(self, later: Self) -> Self {
        if matches!(later, Self::Failover) {
            self
        } else {
            later
        }
    }
}
