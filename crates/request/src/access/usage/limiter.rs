//! Enforces the limits of tenants, of keys, and of models of tenants.

use super::limits::{QuotaScope, RateLimitStatus, UsageLimits};
use super::registry::QuotaRegistry;
use super::subject::{CountedAs, ExceededLimit, SubjectUsage, UsageMeter};
use crate::access::charge::TokenCharge;
use crate::error::GatewayError;
use crate::observe::AdmissionPermit;
use crate::record::RequestRecord;
use std::iter;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;

/// Limits and usage of a tenant, of a key or of a model of a tenant.
#[derive(Debug)]
pub(crate) struct UsageLimiter {
    pub limits: UsageLimits,
    /// The usage. After a reload of the key file, the new limiter of a subject shares it with the earlier
    /// limiter.
    subject: Arc<SubjectUsage>,
    registry: Arc<QuotaRegistry>,
    has_quotas: bool,
}

struct LockedLimiter<'a> {
    limiter: &'a UsageLimiter,
    meter: MutexGuard<'a, UsageMeter>,
}

/// Counts one request as open for its tenant and for its key, until the permit is dropped.
#[derive(Debug)]
pub struct ConcurrencyPermit {
    group: Arc<SubjectUsage>,
    key: Option<Arc<SubjectUsage>>,
}

/// Counts one request as open for a model of its tenant. When the request has ended, charges its tokens.
#[derive(Debug)]
pub struct ModelPermit {
    limiter: Arc<UsageLimiter>,
    #[expect(dead_code, reason = "its drop ends the permit")]
    permit: ConcurrencyPermit,
}

/// The limiters that a request passes together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limiters<'a> {
    /// The limiter of the tenant, or of a model of the tenant.
    pub group: &'a UsageLimiter,
    /// The limiter of the key. `None`: the key has no limits of its own.
    pub key: Option<&'a UsageLimiter>,
}

/// Starts a request if all limits allow it. Also returns the quota that remains after the request.
pub(crate) fn enter(
    limiters: Limiters<'_>,
    now: Instant,
) -> (RateLimitStatus, Result<ConcurrencyPermit, GatewayError>) {
    let (status, counted) = count(limiters, CountedAs::Request, now);
    let permit = || ConcurrencyPermit {
        group: limiters.group.subject.clone(),
        key: limiters.key.map(|key| key.subject.clone()),
    };
    (status, counted.map(|()| permit()))
}

/// Counts a request in all limiters if the limits allow it, and returns the quota that remains. A counted
/// [`CountedAs::Request`] must become a [`ConcurrencyPermit`].
pub(crate) fn count(
    limiters: Limiters<'_>,
    counted_as: CountedAs,
    now: Instant,
) -> (RateLimitStatus, Result<(), GatewayError>) {
    let key_has_quotas = limiters.key.is_some_and(|key| key.has_quotas);
    let has_quotas = limiters.group.has_quotas || key_has_quotas;
    let unix_millis = if has_quotas { clock::unix_millis() } else { 0 };
    // The usage of the tenant is always locked before the usage of the key, which prevents a deadlock.
    let mut group = limiters.group.lock();
    let mut key = limiters.key.map(UsageLimiter::lock);
    let mut exceeded: Option<ExceededLimit> = None;
    for LockedLimiter { limiter, meter } in iter::once(&mut group).chain(&mut key) {
        meter.advance(&limiter.limits, now, unix_millis);
        let rule = limiter.registry.rule();
        let found = meter.exceeded_limit(&limiter.limits, rule, counted_as, unix_millis);
        exceeded = exceeded
            .into_iter()
            .chain(found)
            .max_by_key(|exceeded| exceeded.retry_after);
    }
    let mut status = RateLimitStatus::default();
    for LockedLimiter { limiter, meter } in iter::once(&mut group).chain(&mut key) {
        if exceeded.is_none() {
            meter.count_request(counted_as);
        }
        let own = meter.rate_limit_status(&limiter.limits, unix_millis);
        status = status.most_restrictive(own);
        limiter.activate(meter);
    }
    let result = match exceeded {
        Some(exceeded) if exceeded.is_usage_unknown => Err(GatewayError::UsageUnknown),
        Some(exceeded) => Err(GatewayError::RateLimited {
            limited: exceeded.kind,
            allowed: exceeded.limit,
            retry_after: round_up_to_seconds(exceeded.retry_after),
        }),
        None => Ok(()),
    };
    (status, result)
}

/// Rounds a wait up to whole seconds, at least 1.
fn round_up_to_seconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis().div_ceil(1_000))
        .unwrap_or(u32::MAX)
        .max(1)
}

impl UsageLimiter {
    /// A limiter with the usage of `previous`, if present.
    pub(crate) fn new(
        name: String,
        limits: UsageLimits,
        registry: &Arc<QuotaRegistry>,
        previous: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let subject = match previous {
            Some(previous) => previous.subject.clone(),
            None => Arc::new(SubjectUsage::new(name)),
        };
        let quotas = limits.quotas(registry.scope);
        let has_quotas = !quotas.is_empty();
        subject.set_quotas(quotas);
        if has_quotas && previous.is_none() {
            registry.awaited.restore_subject(&subject);
        }
        Arc::new(Self {
            limits,
            subject,
            registry: registry.clone(),
            has_quotas,
        })
    }

    pub(crate) fn subject_with_quotas(&self) -> Option<&Arc<SubjectUsage>> {
        self.has_quotas.then_some(&self.subject)
    }

    /// Adds the tokens of a request that has ended to the usage of the subject.
    pub(crate) fn charge(&self, tokens: u64, now: Instant) {
        let unix_millis = if self.has_quotas {
            clock::unix_millis()
        } else {
            0
        };
        let mut meter = lock(&self.subject.meter);
        meter.advance(&self.limits, now, unix_millis);
        meter.charge(&self.limits, tokens);
        self.activate(&mut meter);
    }

    /// Number of open requests of the subject.
    pub(crate) fn open(&self) -> u32 {
        self.subject.open()
    }

    fn lock(&self) -> LockedLimiter<'_> {
        LockedLimiter {
            limiter: self,
            meter: lock(&self.subject.meter),
        }
    }

    /// Lists the subject as active, if several gateways share its quotas.
    fn activate(&self, meter: &mut UsageMeter) {
        let is_shared = self.has_quotas && self.registry.scope == QuotaScope::Shared;
        if is_shared && !meter.is_active {
            meter.is_active = true;
            self.registry.activate(&self.subject);
        }
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        self.group.end_request();
        if let Some(key) = &self.key {
            key.end_request();
        }
    }
}

impl ModelPermit {
    pub(crate) fn enter(
        limiter: &Arc<UsageLimiter>,
        now: Instant,
    ) -> (RateLimitStatus, Result<Self, GatewayError>) {
        let limiters = Limiters {
            group: limiter,
            key: None,
        };
        let (status, permit) = enter(limiters, now);
        let permit = permit.map(|permit| Self {
            limiter: limiter.clone(),
            permit,
        });
        (status, permit)
    }
}

impl AdmissionPermit for ModelPermit {
    fn finished(&mut self, record: &RequestRecord) {
        let ended = record.timings.end();
        let charge = TokenCharge::from_record(record);
        self.limiter.charge(charge.total(), ended);
    }
}
