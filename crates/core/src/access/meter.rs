//! What a tenant or a key has used lately. It outlives a reload of the file, so that nobody gets a
//! new allowance by one.

use super::limits::{Left, Limits, Standing};
use crate::error::{Error, Limited};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limits, and what counts towards them.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    pub(super) limits: Limits,
    pub(super) meter: Arc<Meter>,
}

/// What counts.
#[derive(Debug, Default)]
pub(super) struct Meter(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    requests: Bucket,
    tokens: Bucket,
    open: u32,
}

/// What is used of a limit by the minute.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    used: f64,
    at: Option<Instant>,
}

/// A place among the open requests of a tenant and of a key. Dropping it gives it back.
#[derive(Debug)]
pub struct Place([Arc<Meter>; 2]);

/// How long a request waits at least that found too many open: nobody knows when one ends.
const RETRY: Duration = Duration::from_secs(1);

/// Lets a request in that counts for a tenant and for one of its keys, if both have room. Also what
/// is left then.
pub(super) fn enter(accounts: [&Account; 2], now: Instant) -> (Standing, Result<Place, Error>) {
    // The tenant's is always locked before the key's, and no meter is both.
    let mut used = accounts.map(|account| account.meter.used());
    for (used, account) in used.iter_mut().zip(accounts) {
        used.settle(&account.limits, now);
    }
    let refusals = used.iter().zip(accounts).filter_map(|(used, it)| used.refusal(&it.limits));
    let refusal = refusals.max_by_key(|(_, _, wait)| *wait);
    if refusal.is_none() {
        for used in &mut used {
            used.requests.used += 1.0;
            used.open += 1;
        }
    }
    let [tenant, key] = [0, 1].map(|index| used[index].standing(&accounts[index].limits));
    let place = match refusal {
        Some((limited, allowed, wait)) => {
            Err(Error::RateLimited { limited, allowed, retry_after: in_seconds(wait) })
        }
        None => Ok(Place(accounts.map(|account| account.meter.clone()))),
    };
    (tenant.tighter(key), place)
}

/// Rounded up, and never 0: a client that comes back at once comes too early.
fn in_seconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX).max(1)
}

// === impl Account, Meter ===

impl Account {
    /// An answer has ended that had so many tokens.
    pub(super) fn charge(&self, tokens: u64, now: Instant) {
        let mut used = self.meter.used();
        used.settle(&self.limits, now);
        if self.limits.tokens_per_minute.is_some() {
            used.tokens.used += tokens as f64;
        }
    }

    /// How many requests are open.
    pub(super) fn open(&self) -> u32 {
        self.meter.used().open
    }
}

impl Meter {
    fn used(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for meter in &self.0 {
            let mut used = meter.used();
            used.open = used.open.saturating_sub(1);
        }
    }
}

// === impl Used ===

impl Used {
    fn settle(&mut self, limits: &Limits, now: Instant) {
        self.requests.settle(limits.requests_per_minute, now);
        self.tokens.settle(limits.tokens_per_minute, now);
    }

    /// Which limit keeps a request out for the longest time, how much it allows, and that time.
    fn refusal(&self, limits: &Limits) -> Option<(Limited, u32, Duration)> {
        let Limits { requests_per_minute, tokens_per_minute, concurrency } = *limits;
        let wait = |bucket: &Bucket, limit: Option<u32>, step| {
            Some((limit?, bucket.until_below(limit?, step)?))
        };
        let requests = wait(&self.requests, requests_per_minute, 1.0);
        let tokens = wait(&self.tokens, tokens_per_minute, 0.0);
        let places = concurrency.filter(|most| self.open >= *most).map(|most| (most, RETRY));
        let all = [
            (Limited::Requests, requests),
            (Limited::Tokens, tokens),
            (Limited::Concurrency, places),
        ];
        let refusals = all
            .into_iter()
            .filter_map(|(limited, found)| found.map(|(allowed, wait)| (limited, allowed, wait)));
        refusals.max_by_key(|(_, _, wait)| *wait)
    }

    fn standing(&self, limits: &Limits) -> Standing {
        Standing {
            requests: limits.requests_per_minute.map(|limit| self.requests.left(limit)),
            tokens: limits.tokens_per_minute.map(|limit| self.tokens.left(limit)),
        }
    }
}

// === impl Bucket ===

impl Bucket {
    /// What was used is forgotten by and by. Nothing is remembered of what has no limit.
    fn settle(&mut self, limit: Option<u32>, now: Instant) {
        let Some(limit) = limit else { return *self = Self::default() };
        let since = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.used = (self.used - per_second(limit) * since.as_secs_f64()).max(0.0);
        self.at = self.at.max(Some(now));
    }

    /// How long it takes until so much more can be used. `None`: it can now.
    fn until_below(&self, limit: u32, step: f64) -> Option<Duration> {
        let over = self.used + step - f64::from(limit);
        // Of tokens any may be left, of requests a whole one must be.
        let is_over = if step > 0.0 { over > 0.0 } else { over >= 0.0 };
        is_over.then(|| seconds(over / per_second(limit)).max(Duration::from_millis(1)))
    }

    fn left(&self, limit: u32) -> Left {
        let remaining = (f64::from(limit) - self.used).max(0.0).floor() as u32;
        Left { limit, remaining, reset: seconds(self.used / per_second(limit)) }
    }
}

fn per_second(limit: u32) -> f64 {
    f64::from(limit) / 60.0
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
