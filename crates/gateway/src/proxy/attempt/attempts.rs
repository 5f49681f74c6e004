//! The attempts of one request so far, and the rules for another one.

use super::failure::FailedAttempt;
use super::prepared::PreparedRequest;
use crate::backend::pool::BackendRequirements;
use crate::backend::{Backend, Lease};
use crate::proxy::admission::LeasedBackend;
use crate::proxy::retry::{self, FailedRequest, RetryBudgetShare};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::{FailoverDenialReason, RequestRecord};
use tokenweir_routing::resilience::{FailoverPolicy, FailureKind};

/// Interval at which a request whose backend is down tries to lease another backend.
const FAILOVER_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The attempts of one request so far.
pub(crate) struct Attempts<'a> {
    pub request: &'a PreparedRequest<'a>,
    /// The share of the retry budget that the request uses.
    pub share: RetryBudgetShare,
    /// The backends that must not get the request again.
    pub tried: Vec<Arc<Backend>>,
    /// Only a backend with a longer context than this can serve the request. `None`: the context length does
    /// not matter.
    pub longer_than: Option<u32>,
    /// Number of failed attempts. An attempt that could not reach its backend does not count.
    failed: u32,
}

impl<'a> Attempts<'a> {
    /// Begins the attempts of a request, and counts the request towards its retry budget.
    pub(crate) fn begin(request: &'a PreparedRequest<'a>, record: &RequestRecord) -> Self {
        let share = RetryBudgetShare::for_record(record);
        request.context.retry.deposit(share);
        Self {
            request,
            share,
            tried: Vec::new(),
            longer_than: None,
            failed: 0,
        }
    }

    /// Counts a failed attempt, and excludes its backend from the next ones.
    pub(crate) fn count(&mut self, failed: &FailedAttempt) {
        if !failed.keeps_backend {
            self.tried.push(failed.lease.backend().clone());
        }
        let counts = failed.failure.kind.failover() != FailoverPolicy::Always;
        self.failed += u32::from(counts);
    }

    /// Decides whether another attempt may follow a failed attempt that was counted. The error is the reason
    /// against another attempt.
    pub(crate) fn allow_another(
        &self,
        record: &RequestRecord,
        failed: &FailedAttempt,
    ) -> Result<(), FailoverDenialReason> {
        let kind = failed.failure.kind;
        let backend = &failed.lease.backend().identity.id;
        if retry::is_poison(record, backend, kind, clock::now()) {
            return Err(FailoverDenialReason::PoisonRequest);
        }
        self.allow(kind, self.failed, self.tried.len())
    }

    /// Leases a backend that the request has not tried.
    pub(crate) fn lease_other(&self) -> Result<LeasedBackend, FailoverDenialReason> {
        let next = self.pool_lease(&self.tried);
        next.map_err(|_| FailoverDenialReason::NoOtherBackend)
    }

    /// Waits until the health checker has declared the leased backend down and the request may fail over.
    /// Returns the lease on another backend. A stuck backend closes no connection, so without this function the
    /// request would wait until its own timeout.
    ///
    /// While no other backend is available, this function keeps waiting and the attempt continues, because its
    /// backend may recover.
    pub(crate) async fn lease_when_down(&self, lease: &Lease) -> LeasedBackend {
        loop {
            lease.backend().health.wait_declared_down().await;
            let tried = [self.tried.as_slice(), std::slice::from_ref(lease.backend())].concat();
            // Another backend whose engine also seems stuck would be no better.
            if let Ok(next) = self.pool_lease(&tried)
                && !next.0.backend().is_last_resort()
                && self
                    .allow(FailureKind::Down, self.failed + 1, tried.len())
                    .is_ok()
            {
                return next;
            }
            tokio::time::sleep(FAILOVER_POLL_INTERVAL).await;
        }
    }

    /// Waits in the admission queue until a backend can serve the request, within its deadlines.
    pub(crate) async fn wait_for_backend(
        &self,
        exchange: &mut Exchange,
    ) -> Result<LeasedBackend, GatewayError> {
        let record = exchange.record();
        record.timings.sent = None;
        let admission = &self.request.context.state.admission;
        let leasing = admission.lease(record, &self.request.head.headers, self.requirements());
        let leased = self.request.within_deadlines(pin!(leasing)).await;
        leased.unwrap_or_else(|deadline| Err(deadline.error()))
    }

    pub(crate) fn requirements(&self) -> BackendRequirements<'a> {
        BackendRequirements {
            longer_than: self.longer_than,
            ..*self.request.requirements
        }
    }

    fn pool_lease(&self, tried: &[Arc<Backend>]) -> Result<LeasedBackend, GatewayError> {
        self.request
            .context
            .state
            .pool
            .lease(self.requirements(), tried, clock::now())
    }

    fn allow(
        &self,
        kind: FailureKind,
        failed_attempts: u32,
        tried_backends: usize,
    ) -> Result<(), FailoverDenialReason> {
        let has_side_effects = !kind.precludes_effects() && self.request.has_side_effects();
        let failed = FailedRequest {
            kind,
            failed_attempts,
            tried_backends,
            has_side_effects,
        };
        self.request.context.retry.allow(self.share, failed)
    }
}
