//! Measures the usage of tenants and keys with leaky buckets, and enforces their limits. The usage
//! survives a reload of the key file.

use super::usage_limits::{RateLimitStatus, RemainingQuota, UsageLimits};
use crate::error::{GatewayError, RateLimitKind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_protocol::mutex::lock;

/// Limits and usage of a tenant or a key.
#[derive(Debug, Clone, Default)]
pub(super) struct UsageLimiter {
    pub(super) limits: UsageLimits,
    /// Usage of the tenant or key. After a reload of the key file, the new limiter of the same
    /// tenant or key shares this meter with the earlier one.
    pub(super) meter: Arc<Mutex<UsageMeter>>,
}

/// Usage of a tenant or a key.
#[derive(Debug, Default)]
pub(super) struct UsageMeter {
    requests: LeakyBucket,
    tokens: LeakyBucket,
    open_requests: u32,
}

/// Usage of one limit per minute: requests or tokens.
#[derive(Debug, Clone, Copy, Default)]
struct LeakyBucket {
    /// Requests or tokens used, less the part that has drained until `updated_at`.
    used: f64,
    /// Time of the last update of `used`. `None`: `used` has never been updated.
    updated_at: Option<Instant>,
}

/// Counts one request as open for its tenant and for its key, until the permit is dropped.
#[derive(Debug)]
pub struct ConcurrencyPermit([Arc<Mutex<UsageMeter>>; 2]);

/// Retry time of a request that was rejected by the concurrency limit. It is a constant because the
/// time at which an open request ends is not known.
const CONCURRENCY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a request counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountedAs {
    /// A request that is open from now on.
    Request,
    /// A repetition of an open request. It is not open in addition.
    Repetition,
}

/// Starts a request if the limits of its tenant and of its key allow it. `limiters`: the limiter of the
/// tenant, then the limiter of the key. Also returns the quota that remains after this request.
pub(super) fn enter(
    limiters: [&UsageLimiter; 2],
    now: Instant,
) -> (RateLimitStatus, Result<ConcurrencyPermit, GatewayError>) {
    let (status, counted) = count(limiters, CountedAs::Request, now);
    let permit = || ConcurrencyPermit(limiters.map(|limiter| limiter.meter.clone()));
    (status, counted.map(|()| permit()))
}

/// Counts a request in both limiters if the limits allow it, and returns the quota that remains. A counted
/// [`CountedAs::Request`] must become a [`ConcurrencyPermit`].
pub(super) fn count(
    limiters: [&UsageLimiter; 2],
    counted_as: CountedAs,
    now: Instant,
) -> (RateLimitStatus, Result<(), GatewayError>) {
    let limits = limiters.map(|limiter| match counted_as {
        CountedAs::Request => limiter.limits,
        CountedAs::Repetition => UsageLimits {
            concurrency: None,
            ..limiter.limits
        },
    });
    // No deadlock: the meter of the tenant is always locked before that of the key.
    let mut usages = limiters.map(|limiter| lock(&limiter.meter));
    for (usage, limits) in usages.iter_mut().zip(&limits) {
        usage.drain_buckets(limits, now);
    }
    let pairs = usages.iter().zip(&limits);
    let exceeded_limits = pairs.filter_map(|(usage, limits)| usage.exceeded_limit(limits));
    let exceeded_limit = exceeded_limits.max_by_key(|(_, _, wait)| *wait);
    if exceeded_limit.is_none() {
        for usage in &mut usages {
            usage.requests.used += 1.0;
            usage.open_requests += u32::from(counted_as == CountedAs::Request);
        }
    }
    let [tenant, key] = [0, 1].map(|index| usages[index].rate_limit_status(&limits[index]));
    let result = match exceeded_limit {
        Some((limited, allowed, wait)) => Err(GatewayError::RateLimited {
            limited,
            allowed,
            retry_after: round_up_to_seconds(wait),
        }),
        None => Ok(()),
    };
    (tenant.most_restrictive(key), result)
}

/// Rounds a wait up to whole seconds, at least 1.
fn round_up_to_seconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis().div_ceil(1_000))
        .unwrap_or(u32::MAX)
        .max(1)
}

// === impl UsageLimiter ===

impl UsageLimiter {
    /// Adds the tokens of a request that has ended to the usage of the tenant or key.
    pub(super) fn charge(&self, tokens: u64, now: Instant) {
        let mut usage = lock(&self.meter);
        usage.drain_buckets(&self.limits, now);
        if self.limits.tokens_per_minute.is_some() {
            usage.tokens.used += tokens as f64;
        }
    }

    /// Number of open requests of the tenant or key.
    pub(super) fn open(&self) -> u32 {
        lock(&self.meter).open_requests
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        for meter in &self.0 {
            let mut usage = lock(meter);
            usage.open_requests = usage.open_requests.saturating_sub(1);
        }
    }
}

// === impl UsageMeter ===

impl UsageMeter {
    fn drain_buckets(&mut self, limits: &UsageLimits, now: Instant) {
        self.requests
            .drain_since_update(limits.requests_per_minute, now);
        self.tokens
            .drain_since_update(limits.tokens_per_minute, now);
    }

    /// The exceeded limit with the longest wait: its kind, its value and the wait. `None`: no limit
    /// is exceeded.
    fn exceeded_limit(&self, limits: &UsageLimits) -> Option<(RateLimitKind, u32, Duration)> {
        let UsageLimits {
            requests_per_minute,
            tokens_per_minute,
            concurrency,
        } = *limits;
        let wait = |bucket: &LeakyBucket, limit: Option<u32>, amount| {
            Some((limit?, bucket.time_until_available(limit?, amount)?))
        };
        let requests = wait(&self.requests, requests_per_minute, 1.0);
        let tokens = wait(&self.tokens, tokens_per_minute, 0.0);
        let concurrency = concurrency.filter(|limit| self.open_requests >= *limit);
        let concurrency = concurrency.map(|limit| (limit, CONCURRENCY_RETRY_AFTER));
        let limits_with_waits = [
            (RateLimitKind::Requests, requests),
            (RateLimitKind::Tokens, tokens),
            (RateLimitKind::Concurrency, concurrency),
        ];
        let exceeded_limits = limits_with_waits
            .into_iter()
            .filter_map(|(kind, limit)| limit.map(|(allowed, wait)| (kind, allowed, wait)));
        exceeded_limits.max_by_key(|(_, _, wait)| *wait)
    }

    fn rate_limit_status(&self, limits: &UsageLimits) -> RateLimitStatus {
        RateLimitStatus {
            requests: limits
                .requests_per_minute
                .map(|limit| self.requests.remaining_quota(limit)),
            tokens: limits
                .tokens_per_minute
                .map(|limit| self.tokens.remaining_quota(limit)),
        }
    }
}

// === impl LeakyBucket ===

impl LeakyBucket {
    /// Reduces the usage by the quota for the time since the last update. Without a limit, the usage is
    /// set to 0.
    fn drain_since_update(&mut self, limit: Option<u32>, now: Instant) {
        let Some(limit) = limit else {
            return *self = Self::default();
        };
        let elapsed = self
            .updated_at
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.used = (self.used - limit_per_second(limit) * elapsed.as_secs_f64()).max(0.0);
        self.updated_at = self.updated_at.max(Some(now));
    }

    /// Time until `amount` requests or tokens can be used, at least 1 ms. `None`: they can be used now.
    /// With an amount of 0, a request waits until some quota remains: its tokens are not known at its
    /// start.
    fn time_until_available(&self, limit: u32, amount: f64) -> Option<Duration> {
        let excess = self.used + amount - f64::from(limit);
        let is_exceeded = if amount > 0.0 {
            excess > 0.0
        } else {
            excess >= 0.0
        };
        is_exceeded.then(|| {
            duration_from_seconds(excess / limit_per_second(limit)).max(Duration::from_millis(1))
        })
    }

    fn remaining_quota(&self, limit: u32) -> RemainingQuota {
        let remaining = (f64::from(limit) - self.used).max(0.0).floor() as u32;
        let reset = duration_from_seconds(self.used / limit_per_second(limit));
        RemainingQuota {
            limit,
            remaining,
            reset,
        }
    }
}

fn limit_per_second(limit: u32) -> f64 {
    f64::from(limit) / 60.0
}

fn duration_from_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
