//! The usage of a subject of limits: a tenant, a key, or a model of a tenant. The usage survives a reload of
//! the key file.

use super::bucket::LeakyBucket;
use super::calendar::QuotaPeriod;
use super::limits::{RateLimitStatus, RemainingQuota, UsageLimits};
use super::quota::{Quota, QuotaUnit, SharingRule};
use crate::error::RateLimitKind;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_protocol::mutex::lock;

/// The usage of a tenant, of a key or of a model of a tenant.
#[derive(Debug)]
pub struct SubjectUsage {
    /// The name of the subject: `TENANT`, `TENANT/key/KEY` or `TENANT/model/MODEL`.
    pub name: Box<str>,
    pub(super) meter: Mutex<UsageMeter>,
}

#[derive(Debug, Default)]
pub(super) struct UsageMeter {
    requests: LeakyBucket,
    tokens: LeakyBucket,
    open_requests: u32,
    pub quotas: Vec<Quota>,
    /// Whether the registry lists the subject as active.
    pub is_active: bool,
}

/// How a request is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountedAs {
    /// A request that is open from now on.
    Request,
    /// A repetition of an open request, which does not count as a further open request.
    Repetition,
}

/// A limit that makes the gateway refuse a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExceededLimit {
    pub kind: RateLimitKind,
    pub limit: u64,
    pub retry_after: Duration,
    /// Whether the gateway cannot know yet how much of the limit all gateways have used.
    pub is_usage_unknown: bool,
}

/// Retry time of a request that the concurrency limit rejects. A constant, because the end of an open request
/// cannot be predicted.
const CONCURRENCY_RETRY_AFTER: Duration = Duration::from_secs(1);

impl SubjectUsage {
    pub(in crate::access) fn new(name: String) -> Self {
        Self {
            name: name.into(),
            meter: Mutex::default(),
        }
    }

    /// Replaces the quotas by the quotas of new limits. A quota with the same unit and period keeps its usage.
    pub(super) fn set_quotas(&self, quotas: Vec<Quota>) {
        let mut meter = lock(&self.meter);
        let previous = std::mem::take(&mut meter.quotas);
        let kept = quotas.into_iter().map(|quota| {
            let same = |old: &&Quota| old.unit == quota.unit && old.period == quota.period;
            match previous.iter().find(same) {
                Some(old) => old.with_limit(quota.limit),
                None => quota,
            }
        });
        meter.quotas = kept.collect();
    }

    /// Reads or changes the quotas.
    pub fn with_quotas<T>(&self, work: impl FnOnce(&mut [Quota]) -> T) -> T {
        work(&mut lock(&self.meter).quotas)
    }

    /// If the subject is idle, makes the registry list it as active again at its next use. Returns whether the
    /// subject is idle.
    pub fn retire_if_idle(&self) -> bool {
        let mut meter = lock(&self.meter);
        meter.is_active = !meter.quotas.iter().all(Quota::is_idle);
        !meter.is_active
    }

    /// Makes the next claims state the usage of each quota by this gateway. Returns whether the caller must
    /// keep the subject among the active ones from now on.
    pub fn restate(&self) -> bool {
        self.with_quotas(|quotas| quotas.iter_mut().for_each(Quota::restate));
        self.mark_active()
    }

    /// Marks the subject as active. `true`: the caller must add it to the registry.
    pub fn mark_active(&self) -> bool {
        !std::mem::replace(&mut lock(&self.meter).is_active, true)
    }

    pub(super) fn open(&self) -> u32 {
        lock(&self.meter).open_requests
    }

    pub(super) fn end_request(&self) {
        let mut meter = lock(&self.meter);
        meter.open_requests = meter.open_requests.saturating_sub(1);
        for quota in &mut meter.quotas {
            if quota.unit == QuotaUnit::OpenRequests {
                quota.end_request();
            }
        }
    }
}

impl UsageMeter {
    /// Advances the usage to `now`, which is `unix_millis` since 1970.
    pub(super) fn advance(&mut self, limits: &UsageLimits, now: Instant, unix_millis: u64) {
        self.requests
            .drain_since_update(limits.requests_per_minute, now);
        self.tokens
            .drain_since_update(limits.tokens_per_minute, now);
        for quota in &mut self.quotas {
            quota.advance(unix_millis);
        }
    }

    /// The exceeded limit with the longest wait. `None`: no limit is exceeded.
    pub(super) fn exceeded_limit(
        &mut self,
        limits: &UsageLimits,
        rule: SharingRule,
        counted_as: CountedAs,
        unix_millis: u64,
    ) -> Option<ExceededLimit> {
        let UsageLimits {
            requests_per_minute,
            tokens_per_minute,
            concurrency,
            ..
        } = *limits;
        let wait = |bucket: &LeakyBucket, limit: Option<u32>, amount| {
            Some((limit?, bucket.time_until_available(limit?, amount)?))
        };
        let requests = wait(&self.requests, requests_per_minute, 1.0);
        let tokens = wait(&self.tokens, tokens_per_minute, 0.0);
        let is_open = counted_as == CountedAs::Request;
        let concurrency = concurrency.filter(|limit| is_open && self.open_requests >= *limit);
        let concurrency = concurrency.map(|limit| (limit, CONCURRENCY_RETRY_AFTER));
        let limits_with_waits = [
            (RateLimitKind::Requests, requests),
            (RateLimitKind::Tokens, tokens),
            (RateLimitKind::Concurrency, concurrency),
        ];
        let of_limits = limits_with_waits
            .into_iter()
            .filter_map(|(kind, exceeded)| {
                let (limit, retry_after) = exceeded?;
                Some(ExceededLimit {
                    kind,
                    limit: limit.into(),
                    retry_after,
                    is_usage_unknown: false,
                })
            });
        let quotas = self.quotas.iter_mut();
        let counted = quotas.filter(|quota| is_open || quota.unit != QuotaUnit::OpenRequests);
        let of_quotas = counted.filter_map(|quota| {
            quota.want();
            quota.is_used_up(rule).then(|| ExceededLimit {
                kind: kind_of(quota),
                limit: quota.limit,
                retry_after: quota.retry_after(unix_millis),
                is_usage_unknown: quota.is_usage_unknown(rule),
            })
        });
        of_limits
            .chain(of_quotas)
            .max_by_key(|exceeded| exceeded.retry_after)
    }

    pub(super) fn count_request(&mut self, counted_as: CountedAs) {
        let opened = u32::from(counted_as == CountedAs::Request);
        self.requests.used += 1.0;
        self.open_requests += opened;
        for quota in &mut self.quotas {
            match quota.unit {
                QuotaUnit::Requests => quota.add(1),
                QuotaUnit::OpenRequests => quota.add(opened.into()),
                QuotaUnit::Tokens => {}
            }
        }
    }

    /// Adds the tokens of a request that has ended.
    pub(super) fn charge(&mut self, limits: &UsageLimits, tokens: u64) {
        if limits.tokens_per_minute.is_some() {
            self.tokens.used += tokens as f64;
        }
        for quota in &mut self.quotas {
            if quota.unit == QuotaUnit::Tokens {
                quota.add(tokens);
            }
        }
    }

    pub(super) fn rate_limit_status(
        &self,
        limits: &UsageLimits,
        unix_millis: u64,
    ) -> RateLimitStatus {
        let mut status = RateLimitStatus {
            requests: limits
                .requests_per_minute
                .map(|limit| self.requests.remaining_quota(limit)),
            tokens: limits
                .tokens_per_minute
                .map(|limit| self.tokens.remaining_quota(limit)),
        };
        for quota in &self.quotas {
            let remaining = Some(RemainingQuota {
                limit: quota.limit,
                remaining: quota.remaining(),
                reset: quota.time_to_end(unix_millis),
            });
            let mut of_quota = RateLimitStatus::default();
            match quota.unit {
                QuotaUnit::Requests => of_quota.requests = remaining,
                QuotaUnit::Tokens => of_quota.tokens = remaining,
                QuotaUnit::OpenRequests => {}
            }
            status = status.most_restrictive(of_quota);
        }
        status
    }
}

fn kind_of(quota: &Quota) -> RateLimitKind {
    match (quota.unit, quota.period) {
        (QuotaUnit::Requests, QuotaPeriod::Day) => RateLimitKind::RequestsPerDay,
        (QuotaUnit::Requests, QuotaPeriod::Month) => RateLimitKind::RequestsPerMonth,
        (QuotaUnit::Requests, _) => RateLimitKind::Requests,
        (QuotaUnit::Tokens, QuotaPeriod::Day) => RateLimitKind::TokensPerDay,
        (QuotaUnit::Tokens, QuotaPeriod::Month) => RateLimitKind::TokensPerMonth,
        (QuotaUnit::Tokens, _) => RateLimitKind::Tokens,
        (QuotaUnit::OpenRequests, _) => RateLimitKind::Concurrency,
    }
}
