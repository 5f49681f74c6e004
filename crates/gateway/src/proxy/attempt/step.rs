//! The contract of the steps between the attempts of a request.

use super::attempts::Attempts;
use super::failure::FailedAttempt;
use super::send::OutboundAttempt;
use crate::proxy::admission::LeasedBackend;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::FailoverDenialReason;

/// One concern between the attempts of a request. One value serves all attempts of one request, and does
/// nothing in the phases that it does not implement. A step may name the failure more precisely for the
/// steps after it.
pub(crate) trait AttemptStep {
    /// Prepares an attempt. The request is sent to the leased backend next.
    async fn before(&mut self, _: &mut Exchange, _: &mut OutboundAttempt<'_>) {}

    /// Learns from a failed attempt, and decides what follows.
    fn after_failure(
        &mut self,
        exchange: &mut Exchange,
        attempts: &mut Attempts<'_>,
        failed: &mut FailedAttempt,
    ) -> Next;

    /// Finds a backend after [`Next::Search`], when the request has tried all that can serve it now.
    async fn search(
        &mut self,
        _: &mut Exchange,
        _: &mut Attempts<'_>,
        failed: Box<FailedAttempt>,
    ) -> Search {
        Search::NotFound(failed)
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
        if matches!(later, Self::Failover) { self } else { later }
    }
}
