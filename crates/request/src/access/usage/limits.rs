//! Limits of a tenant, of a key or of a model of a tenant, and the rate limit headers of responses.

use super::calendar::QuotaPeriod;
use super::quota::{Quota, QuotaUnit};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use std::time::Duration;

/// Limits of a tenant, of a key or of a model of a tenant. A field that is `None` sets no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UsageLimits {
    /// Requests that may start per minute.
    pub requests_per_minute: Option<u32>,
    /// Prompt and output tokens per minute.
    pub tokens_per_minute: Option<u32>,
    /// Requests that may be open at the same time.
    pub concurrency: Option<u32>,
    /// Requests that may start per calendar day in UTC.
    pub requests_per_day: Option<u64>,
    /// Prompt and output tokens per calendar day in UTC.
    pub tokens_per_day: Option<u64>,
    /// Requests that may start per calendar month in UTC.
    pub requests_per_month: Option<u64>,
    /// Prompt and output tokens per calendar month in UTC.
    pub tokens_per_month: Option<u64>,
}

/// Which limits are counted as quotas, and whether gateways share them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum QuotaScope {
    /// Each gateway counts by itself: limits per day and per month are quotas.
    #[default]
    Gateway,
    /// All gateways count together: all limits are quotas.
    Shared,
}

/// Maximum limit. The store counts exactly up to 2^53.
const MAX_LIMIT: u64 = 1_000_000_000_000_000;

/// Remaining quota of a request. If several limits of a tenant, a key or a model count the same unit, the
/// lowest remaining quota is reported. `None`: no such limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// The remaining requests of the client's limit.
    pub requests: Option<RemainingQuota>,
    /// The remaining tokens of the client's limit.
    pub tokens: Option<RemainingQuota>,
}

/// The rest of one limit, for the rate limit headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemainingQuota {
    /// The limit: requests or tokens per minute, day or month.
    pub limit: u64,
    /// Requests or tokens that can be used now.
    pub remaining: u64,
    /// Time until `remaining` equals `limit` again without further use.
    pub reset: Duration,
}

/// Headers of the request quota: limit, remaining, reset, with the names of the OpenAI API.
const REQUEST_LIMIT_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
/// Headers of the token quota: limit, remaining, reset.
const TOKEN_LIMIT_HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

impl UsageLimits {
    pub(super) fn quotas(&self, scope: QuotaScope) -> Vec<Quota> {
        use QuotaPeriod::{Day, Minute, Month, Unbounded};
        use QuotaUnit::{OpenRequests, Requests, Tokens};
        let of_periods = [
            (Requests, Day, self.requests_per_day),
            (Tokens, Day, self.tokens_per_day),
            (Requests, Month, self.requests_per_month),
            (Tokens, Month, self.tokens_per_month),
        ];
        let of_minutes = [
            (Requests, Minute, self.requests_per_minute),
            (Tokens, Minute, self.tokens_per_minute),
            (OpenRequests, Unbounded, self.concurrency),
        ];
        let of_minutes =
            of_minutes.map(|(unit, period, limit)| (unit, period, limit.map(u64::from)));
        let mut set = of_periods.to_vec();
        if scope == QuotaScope::Shared {
            set.extend(of_minutes);
        }
        let quotas = set.into_iter();
        quotas
            .filter_map(|(unit, period, limit)| Some(Quota::new(unit, period, limit?)))
            .collect()
    }

    pub(in crate::access) fn count_tokens(&self) -> bool {
        self.tokens_per_minute.is_some()
            || self.tokens_per_day.is_some()
            || self.tokens_per_month.is_some()
    }

    /// Returns the name of the first invalid limit and its problem.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        for (name, limit) in self.set() {
            if limit == 0 {
                return Err((name, "a limit must be 1 or more; leave it out for no limit"));
            }
            if limit > MAX_LIMIT {
                return Err((name, "a limit must be at most 10^15"));
            }
        }
        Ok(())
    }

    /// The limits that are set, by their names in the key file.
    pub(in crate::access) fn set(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            (
                "requests_per_minute",
                self.requests_per_minute.map(u64::from),
            ),
            ("tokens_per_minute", self.tokens_per_minute.map(u64::from)),
            ("concurrency", self.concurrency.map(u64::from)),
            ("requests_per_day", self.requests_per_day),
            ("tokens_per_day", self.tokens_per_day),
            ("requests_per_month", self.requests_per_month),
            ("tokens_per_month", self.tokens_per_month),
        ];
        all.into_iter()
            .filter_map(|(name, limit)| Some((name, limit?)))
    }
}

impl RateLimitStatus {
    /// The limit of requests with fewer remaining requests, and the limit of tokens with fewer remaining tokens.
    pub fn most_restrictive(self, other: Self) -> Self {
        Self {
            requests: RemainingQuota::lower_remaining(self.requests, other.requests),
            tokens: RemainingQuota::lower_remaining(self.tokens, other.tokens),
        }
    }

    /// Writes the rate limit headers. Headers without a limit are left out.
    pub fn write(&self, headers: &mut HeaderMap) {
        if let Some(requests) = &self.requests {
            requests.write(REQUEST_LIMIT_HEADERS, headers);
        }
        if let Some(tokens) = &self.tokens {
            tokens.write(TOKEN_LIMIT_HEADERS, headers);
        }
    }
}

impl RemainingQuota {
    /// Writes three headers: the limit, the remaining amount, and the time until nothing of the limit is used.
    fn write(&self, names: [HeaderName; 3], headers: &mut HeaderMap) {
        let values = [
            HeaderValue::from(self.limit),
            HeaderValue::from(self.remaining),
            format_go_duration(self.reset),
        ];
        for (name, value) in names.into_iter().zip(values) {
            headers.insert(name, value);
        }
    }

    fn lower_remaining(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        a.into_iter().chain(b).min_by_key(|quota| quota.remaining)
    }
}

/// Formats a duration like Go, as the OpenAI API does: `0s`, `250ms`, `1.5s`, `6m0s`, `1h0m0s`.
/// Fractions of a millisecond are cut off.
fn format_go_duration(duration: Duration) -> HeaderValue {
    let seconds = duration.as_secs();
    let millis = duration.subsec_millis();
    let seconds_text = format!("{}.{millis:03}", seconds % 60);
    let seconds_text = seconds_text.trim_end_matches('0').trim_end_matches('.');
    let text = match (seconds / 3_600, seconds / 60 % 60) {
        (0, 0) if seconds == 0 && millis > 0 => format!("{millis}ms"),
        (0, 0) => format!("{seconds_text}s"),
        (0, minutes) => format!("{minutes}m{seconds_text}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds_text}s"),
    };
    // Cannot fail, because the text has only digits, letters and a dot.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("0s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_quota_is_written_as_headers() {
        let quota = |remaining, millis| {
            Some(RemainingQuota {
                limit: 60,
                remaining,
                reset: Duration::from_millis(millis),
            })
        };
        let tenant = RateLimitStatus {
            requests: quota(5, 55_000),
            tokens: None,
        };
        let key = RateLimitStatus {
            requests: quota(2, 1_500),
            tokens: quota(9, 361_000),
        };
        let mut headers = HeaderMap::new();
        tenant.most_restrictive(key).write(&mut headers);
        for (name, value) in [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "2"),
            ("x-ratelimit-reset-requests", "1.5s"),
            ("x-ratelimit-remaining-tokens", "9"),
            ("x-ratelimit-reset-tokens", "6m1s"),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
    }

    #[test]
    fn no_limits_give_no_headers() {
        let mut headers = HeaderMap::new();
        RateLimitStatus::default().write(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn reset_times_have_the_format_of_go() {
        for (millis, expected) in [
            (0, "0s"),
            (120, "120ms"),
            (1_000, "1s"),
            (1_500, "1.5s"),
            (8_640, "8.64s"),
            (10_007, "10.007s"),
            (20_000, "20s"),
            (60_000, "1m0s"),
            (93_792, "1m33.792s"),
            (360_000, "6m0s"),
            (3_600_000, "1h0m0s"),
            (5_410_500, "1h30m10.5s"),
        ] {
            assert_eq!(format_go_duration(Duration::from_millis(millis)), expected);
        }
    }
}
