//! The part of a limit that this gateway may use in a calendar period. This module has no I/O and reads no
//! clock.
//!
//! ```text
//! one gateway     share = limit
//! gateways with   share = what the store has granted to this gateway. It asks for more before it has used
//! a store         the share up, and returns what it does not need
//! no grant yet    share = limit / (32 × gateways): the grant follows within a tenth of a second
//! just started    share = 0, until the store has said what the other gateways have used
//! store away      share = last grant + what was free at it / gateways; without a grant: limit / gateways
//! ```

use super::calendar::QuotaPeriod;
use serde::Deserialize;
use std::time::Duration;
use tokenweir_protocol::named_enum;

named_enum! {
    /// The thing that a quota counts.
    #[derive(PartialOrd, Ord, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum QuotaUnit {
        /// Number of requests that start.
        Requests = "requests",
        /// Number of prompt and output tokens of requests that end.
        Tokens = "tokens",
        /// Number of requests that are open.
        OpenRequests = "open_requests",
    }
}

/// The amounts that a gateway may use without a grant, and while the store is not reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingRule {
    /// Without a grant, a gateway may use the limit divided by this number. `None`: nothing.
    pub ungranted_divisor: Option<u64>,
    /// Beyond its grant, a gateway may use the amount that is granted to no gateway, divided by this number.
    /// `None`: nothing.
    pub free_divisor: Option<u64>,
}

/// A limit in a calendar period, and the usage by this gateway.
#[derive(Debug, Clone)]
pub struct Quota {
    /// Whether requests, tokens or open requests are counted.
    pub unit: QuotaUnit,
    /// The calendar period, after which the count restarts at 0.
    pub period: QuotaPeriod,
    /// The limit of all gateways together.
    pub limit: u64,
    number: u64,
    /// The first millisecond of the current period.
    begins_at: u64,
    /// The first millisecond after the current period.
    ends_at: u64,
    /// The usage by this gateway in the current period.
    used: u64,
    /// The usage by the other gateways, as of the last answer of the store.
    used_by_others: u64,
    /// The usage by this gateway when the last grant arrived.
    used_before: u64,
    /// The grant of the current period. `None`: the store has granted nothing.
    grant: Option<Grant>,
    next: Option<(u64, Grant)>,
    rate: UsageRate,
    /// Whether a request has asked for the quota since the last claim.
    is_wanted: bool,
    /// Whether the next claim must state the usage by this gateway.
    is_unstated: bool,
    /// Time of the last request that asked for the quota, as last seen by a claim.
    wanted_at: u64,
    claimed_at: u64,
    next_claimed_at: u64,
}

/// The amount that the store has granted to this gateway in a period.
#[derive(Debug, Clone, Copy)]
struct Grant {
    /// The total amount that this gateway may use in the period, including its past usage.
    share: u64,
    /// The amount that was granted to no gateway at the time of the answer.
    free: u64,
    used_by_others: u64,
}

/// A request of a gateway to the store, for one period of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaClaim {
    /// Number of the period, equal at all gateways.
    pub number: u64,
    /// The usage by this gateway.
    pub used: u64,
    /// The grant of this gateway, as far as it knows.
    pub held: u64,
    /// The grant that this gateway wants. It is less than `held` if the gateway returns a part.
    pub wanted: u64,
    /// The maximum amount in one period.
    pub limit: u64,
    /// The second since 1970 after which the store may delete the period.
    pub ends_at: u64,
}

/// The answer of the store to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaAnswer {
    /// The amount granted to this gateway.
    pub share: u64,
    /// The usage by this gateway, as far as the store knows. It exceeds the claimed usage if the gateway has
    /// lost a part of its own count.
    pub used: u64,
    /// The amount granted to all gateways.
    pub granted_by_all: u64,
    /// The usage by all gateways.
    pub used_by_all: u64,
}

/// The mean rate at which this gateway uses a quota.
#[derive(Debug, Clone, Copy, Default)]
struct UsageRate {
    per_second: f64,
    /// Rate since the last update of the mean.
    newest: f64,
    used: u64,
    updated_at: u64,
}

/// Each gateway claims at least the free amount divided by this number and by the number of gateways.
const FREE_DIVISOR: u64 = 8;
/// Without a grant, each gateway uses at most the limit divided by this number and by the number of gateways.
pub const UNGRANTED_DIVISOR: u64 = 32;
/// Number of seconds of its usage that a gateway claims ahead.
const CLAIMED_SECONDS: f64 = 2.0;
/// Time between two claims of a quota in use.
const CLAIM_MILLIS: u64 = 1_000;
/// Time between two claims of a quota of which this gateway holds more than it needs.
const HOLD_MILLIS: u64 = 5_000;
/// Time without a request after which a gateway returns its grant.
const IDLE_MILLIS: u64 = 60_000;
/// Time before the start of a period at which a gateway claims from it.
const AHEAD_MILLIS: u64 = 3_000;
/// Maximum time for which the store keeps the usage of gateways after their last claim.
const LONGEST_PERIOD_SECONDS: u64 = 32 * 86_400;
/// Retry time of a request that is refused while gateways still hold unused grants.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Quota {
    /// A quota without usage.
    pub fn new(unit: QuotaUnit, period: QuotaPeriod, limit: u64) -> Self {
        Self {
            unit,
            period,
            limit,
            number: 0,
            begins_at: 0,
            ends_at: 0,
            used: 0,
            used_by_others: 0,
            used_before: 0,
            grant: None,
            next: None,
            rate: UsageRate::default(),
            is_wanted: false,
            is_unstated: false,
            wanted_at: 0,
            claimed_at: 0,
            next_claimed_at: 0,
        }
    }

    /// The quota with another limit, and the usage of `self`.
    pub(super) fn with_limit(&self, limit: u64) -> Self {
        Self {
            limit,
            ..self.clone()
        }
    }

    /// Begins the period that contains `now`, in milliseconds since 1970.
    pub fn advance(&mut self, now: u64) {
        if (self.begins_at..self.ends_at).contains(&now) {
            return;
        }
        let number = self.period.number_at(now / 1_000);
        // If the clock is set back slightly, the period must not begin twice.
        if number == self.number || number + 1 == self.number {
            return;
        }
        self.used = 0;
        self.rate.used = 0;
        self.used_before = 0;
        let next = self.next.take();
        self.grant = next.filter(|(of, _)| *of == number).map(|(_, grant)| grant);
        self.used_by_others = self.grant.map_or(0, |grant| grant.used_by_others);
        self.number = number;
        self.begins_at = self.period.first_second(number) * 1_000;
        self.ends_at = self.period.first_second(number + 1) * 1_000;
    }

    /// Whether this gateway may use nothing more at present.
    pub fn is_used_up(&self, rule: SharingRule) -> bool {
        self.used >= self.share(rule)
    }

    /// The total amount that this gateway may use in the period, including its past usage.
    fn share(&self, rule: SharingRule) -> u64 {
        let Some(grant) = self.grant else {
            let taken = self.used_by_others.saturating_add(self.used_before);
            let rest = self.limit.saturating_sub(taken);
            let divisor = rule.ungranted_divisor;
            return self.used_before + divisor.map_or(0, |divisor| rest.div_ceil(divisor.max(1)));
        };
        let beyond = rule.free_divisor.map_or(0, |by| grant.free / by.max(1));
        grant.share.saturating_add(beyond)
    }

    /// Whether the limit is not reached as far as this gateway knows, but it may use nothing before the first answer of
    /// the store.
    pub(super) fn is_usage_unknown(&self, rule: SharingRule) -> bool {
        self.grant.is_none() && rule.ungranted_divisor.is_none() && self.remaining() > 0
    }

    /// Records that a request asks for the quota, whether or not the request is admitted.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Adds to the usage by this gateway.
    pub fn add(&mut self, amount: u64) {
        self.used = self.used.saturating_add(amount);
        self.is_wanted = true;
    }

    /// Counts an open request as ended.
    pub fn end_request(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// The usage by this gateway in the period.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The amount that all gateways together can still use in the period, as of the last answer of the store.
    pub fn remaining(&self) -> u64 {
        let used = self.used.saturating_add(self.used_by_others);
        self.limit.saturating_sub(used)
    }

    pub(super) fn time_to_end(&self, now: u64) -> Duration {
        Duration::from_millis(self.ends_at.saturating_sub(now))
    }

    /// Time after which a refused request can be sent again.
    pub(super) fn retry_after(&self, now: u64) -> Duration {
        if self.remaining() > 0 || self.unit == QuotaUnit::OpenRequests {
            return RETRY_AFTER;
        }
        self.time_to_end(now)
    }

    /// The number of the period and the usage in it, for storing them.
    pub fn in_period(&self) -> (u64, u64) {
        (self.number, self.used)
    }

    /// Restores the usage by this gateway, if its period has not ended.
    pub fn restore(&mut self, number: u64, used: u64, now: u64) {
        self.advance(now);
        if number == self.number {
            self.used = self.used.saturating_add(used);
            self.used_before = self.used;
        }
    }

    // === claims ===

    /// Makes the next claim state the usage by this gateway, even if no request asks for the quota. The answer
    /// contains the usage by the others.
    pub fn restate(&mut self) {
        self.is_unstated = true;
    }

    /// Whether this gateway holds no grant and needs none.
    pub fn is_idle(&self) -> bool {
        let is_due = self.is_wanted || self.is_unstated;
        self.grant.is_none() && self.next.is_none() && !is_due
    }

    /// The next claim to send to the store. `None`: nothing to claim. `gateways`: the number of gateways,
    /// including this one.
    pub fn claim(&mut self, now: u64, gateways: u64) -> Option<QuotaClaim> {
        self.advance(now);
        if self.is_wanted {
            self.wanted_at = now;
        }
        self.rate.update(self.used, now);
        let ahead = self.ahead(now, gateways);
        if !self.is_due(now, ahead) {
            return None;
        }
        self.claimed_at = now;
        self.is_wanted = false;
        self.is_unstated = false;
        let wanted = self.used.saturating_add(ahead);
        // The store may have processed a claim whose answer was lost, so this gateway uses only the lower
        // share.
        let held = self.grant.as_mut().map_or(0, |grant| {
            grant.share = grant.share.min(wanted);
            grant.share
        });
        let ends_at = self.period.first_second(self.number + 1);
        Some(QuotaClaim {
            number: self.number,
            used: self.used,
            held,
            wanted,
            limit: self.limit,
            ends_at: ends_at.min(now / 1_000 + LONGEST_PERIOD_SECONDS),
        })
    }

    /// The claim for the next period, shortly before it begins.
    pub fn claim_next(&mut self, now: u64, gateways: u64) -> Option<QuotaClaim> {
        let is_soon = self.ends_at > now && self.ends_at - now <= AHEAD_MILLIS;
        let is_claimed = now.saturating_sub(self.next_claimed_at) < CLAIM_MILLIS;
        if !is_soon || is_claimed || self.next.is_some() || self.grant.is_none() {
            return None;
        }
        self.next_claimed_at = now;
        let number = self.number + 1;
        Some(QuotaClaim {
            number,
            used: 0,
            held: 0,
            wanted: self.part_of(self.limit, gateways),
            limit: self.limit,
            ends_at: self.period.first_second(number + 1),
        })
    }

    /// The amount to claim beyond the usage.
    fn ahead(&self, now: u64, gateways: u64) -> u64 {
        if now.saturating_sub(self.wanted_at) > IDLE_MILLIS {
            return 0;
        }
        self.part_of(self.remaining(), gateways)
    }

    /// The part of a free amount that this gateway claims: its usage in some seconds, but at least a share that
    /// lets its usage grow.
    fn part_of(&self, free: u64, gateways: u64) -> u64 {
        let share = free / (FREE_DIVISOR * gateways.max(1));
        let by_usage = if self.unit == QuotaUnit::OpenRequests {
            self.used / 4
        } else {
            (self.rate.per_second.max(self.rate.newest) * CLAIMED_SECONDS) as u64
        };
        share.max(by_usage).min(free).max(1)
    }

    fn is_due(&self, now: u64, ahead: u64) -> bool {
        if self.is_unstated {
            return true;
        }
        let since = now.saturating_sub(self.claimed_at);
        let Some(grant) = &self.grant else {
            return self.is_wanted;
        };
        let left = grant.share.saturating_sub(self.used);
        if self.is_wanted {
            let is_scarce = left <= ahead / 2 && grant.free > 0;
            return is_scarce || since >= CLAIM_MILLIS;
        }
        since >= HOLD_MILLIS
    }

    /// Applies an answer of the store to `claim`.
    pub fn settle(&mut self, claim: &QuotaClaim, answer: &QuotaAnswer) {
        let grant = Grant {
            share: answer.share.min(self.limit.max(answer.used)),
            free: self.limit.saturating_sub(answer.granted_by_all),
            used_by_others: answer.used_by_all.saturating_sub(answer.used),
        };
        if claim.number == self.number + 1 {
            self.next = Some((claim.number, grant));
        }
        if claim.number != self.number {
            return;
        }
        if self.unit != QuotaUnit::OpenRequests {
            self.used += answer.used.saturating_sub(claim.used).min(self.limit);
        }
        self.used_by_others = grant.used_by_others;
        let is_open = self.unit == QuotaUnit::OpenRequests && self.used > 0;
        let is_returned = claim.wanted == claim.used && !self.is_wanted && !is_open;
        self.grant = (!is_returned).then_some(grant);
        self.used_before = self.used;
    }
}

impl UsageRate {
    fn update(&mut self, used: u64, now: u64) {
        let seconds = now.saturating_sub(self.updated_at) as f64 / 1e3;
        if seconds <= 0.0 {
            return;
        }
        self.newest = used.saturating_sub(self.used) as f64 / seconds;
        let weight = seconds / (seconds + CLAIMED_SECONDS);
        self.per_second += weight * (self.newest - self.per_second);
        self.used = used;
        self.updated_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-30 00:00:00 UTC.
    const MIDNIGHT: u64 = 1_795_996_800_000;
    const ALONE: SharingRule = SharingRule {
        ungranted_divisor: Some(1),
        free_divisor: None,
    };

    fn quota(unit: QuotaUnit, period: QuotaPeriod, now: u64) -> Quota {
        let mut quota = Quota::new(unit, period, 10);
        quota.advance(now);
        quota
    }

    #[test]
    fn a_day_ends_at_midnight() {
        let before = MIDNIGHT - 90_000;
        let mut quota = quota(QuotaUnit::Requests, QuotaPeriod::Day, before);
        quota.add(10);
        assert!(quota.is_used_up(ALONE));
        assert_eq!(quota.retry_after(before), Duration::from_secs(90));
        quota.advance(MIDNIGHT - 1);
        assert!(quota.is_used_up(ALONE));
        quota.advance(MIDNIGHT);
        assert_eq!((quota.is_used_up(ALONE), quota.remaining()), (false, 10));
        quota.add(10);
        quota.advance(MIDNIGHT - 50);
        assert!(quota.is_used_up(ALONE), "the clock was set back");
    }

    #[test]
    fn only_the_present_period_is_restored() {
        let day = QuotaPeriod::Day.number_at(MIDNIGHT / 1_000);
        for (number, used) in [(day, 4), (day - 1, 0), (day + 1, 0)] {
            let mut quota = Quota::new(QuotaUnit::Tokens, QuotaPeriod::Day, 10);
            quota.restore(number, 4, MIDNIGHT);
            assert_eq!(quota.used(), used, "{number}");
        }
    }

    #[test]
    fn a_grant_of_the_next_minute_comes_ahead() {
        let mut quota = quota(QuotaUnit::Requests, QuotaPeriod::Minute, MIDNIGHT);
        quota.add(1);
        let claim = quota.claim(MIDNIGHT, 2).unwrap();
        let answer = QuotaAnswer {
            share: claim.wanted,
            used: claim.used,
            granted_by_all: claim.wanted,
            used_by_all: claim.used,
        };
        quota.settle(&claim, &answer);
        assert!(quota.claim_next(MIDNIGHT + 50_000, 2).is_none());
        let next = quota.claim_next(MIDNIGHT + 58_000, 2).unwrap();
        assert_eq!((next.number, next.used), (claim.number + 1, 0));
        quota.settle(&next, &QuotaAnswer { used: 0, ..answer });
        let none = SharingRule {
            ungranted_divisor: None,
            free_divisor: None,
        };
        quota.advance(MIDNIGHT + 60_000);
        assert!(!quota.is_used_up(none));
        quota.advance(MIDNIGHT + 120_000);
        assert!(quota.is_used_up(none), "nothing is granted");
    }

    #[test]
    fn usage_is_unknown_before_the_first_answer() {
        let starting = SharingRule {
            ungranted_divisor: None,
            free_divisor: None,
        };
        let mut quota = quota(QuotaUnit::Requests, QuotaPeriod::Day, MIDNIGHT);
        assert!(quota.is_used_up(starting) && quota.is_usage_unknown(starting));
        assert!(!quota.is_usage_unknown(ALONE));
        quota.add(10);
        assert!(!quota.is_usage_unknown(starting), "the limit is reached");
    }

    #[test]
    fn a_store_cannot_grant_beyond_the_limit() {
        let mut quota = quota(QuotaUnit::Requests, QuotaPeriod::Day, MIDNIGHT);
        quota.want();
        let claim = quota.claim(MIDNIGHT, 1).unwrap();
        let answer = QuotaAnswer {
            share: u64::MAX,
            used: 0,
            granted_by_all: u64::MAX,
            used_by_all: u64::MAX,
        };
        quota.settle(&claim, &answer);
        quota.add(10);
        assert!(quota.is_used_up(ALONE));
        assert_eq!(quota.remaining(), 0);
    }
}
