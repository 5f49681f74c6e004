//! A limit per minute as a leaky bucket: the quota of a whole minute can be used at once, and refills evenly.

use super::limits::RemainingQuota;
use std::time::{Duration, Instant};

/// Usage of one limit per minute: requests or tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeakyBucket {
    /// Requests or tokens used, minus the amount drained until `updated_at`.
    pub used: f64,
    /// Time of the last update of `used`. `None`: `used` has never been updated.
    updated_at: Option<Instant>,
}

impl LeakyBucket {
    /// Reduces the usage by the quota for the time since the last update. Without a limit, the usage is
    /// set to 0.
    pub(super) fn drain_since_update(&mut self, limit: Option<u32>, now: Instant) {
        let Some(limit) = limit else {
            return *self = Self::default();
        };
        let elapsed = self
            .updated_at
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.used = (self.used - limit_per_second(limit) * elapsed.as_secs_f64()).max(0.0);
        self.updated_at = self.updated_at.max(Some(now));
    }

    /// Time until `amount` requests or tokens can be used, at least 1 ms. `None`: now. An amount of 0, for a
    /// request whose tokens are not known at its start, waits until some quota remains.
    pub(super) fn time_until_available(&self, limit: u32, amount: f64) -> Option<Duration> {
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

    pub(super) fn remaining_quota(&self, limit: u32) -> RemainingQuota {
        let remaining = (f64::from(limit) - self.used).max(0.0).floor() as u64;
        let reset = duration_from_seconds(self.used / limit_per_second(limit));
        RemainingQuota {
            limit: limit.into(),
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
