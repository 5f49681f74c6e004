//! Decides whether a request that a backend failed goes to another one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_core::record::{NotRetried, RequestRecord};
use tokenweir_core::resilience::{Elsewhere, Poison, Symptom};
use tokenweir_core::units;
use tower::retry::budget::{Budget, TpsBudget};
use xxhash_rust::xxh3::xxh3_64;

/// How often requests are sent to another replica.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How many other replicas may have a request after the first one failed it. Those that took no
    /// connection do not count.
    pub attempts: u32,
    /// Share of all requests that may be sent again, from 0 to 1.
    pub budget: f32,
    /// As many in a second may be sent again in any case. One caller may use half of them.
    pub budget_floor: u32,
    /// How long an answer without output is held back. Zero: not at all.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub max_hold: Duration,
}

/// Decides, and remembers what it must for that.
#[derive(Debug)]
pub struct Retry {
    settings: Settings,
    budget: Arc<TpsBudget>,
    /// The shares of callers: no caller can use up the budget of the others by requests that fail
    /// everywhere.
    shares: Arc<[TpsBudget]>,
    poison: Arc<Poison>,
}

/// Whose share of the budget a request uses: its tenant's, or its address's if there are no tenants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller(usize);

/// What has become of one request so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failed<'a> {
    /// How the last replica failed it.
    pub(super) symptom: Symptom,
    /// How many had it and failed.
    pub(super) times: u32,
    /// It may have effects beyond its answer.
    pub(super) has_effects: bool,
    /// Its body.
    pub(super) body: &'a [u8],
}

/// The time over which the budget is kept.
const BUDGET_WINDOW: Duration = Duration::from_secs(10);
/// Shares that callers are spread over by a hash. Callers with the same one share it.
const SHARES: usize = 64;

impl Default for Settings {
    /// Two others, a fifth of the requests, but at least 10 in a second; a minute.
    fn default() -> Self {
        Self { attempts: 2, budget: 0.2, budget_floor: 10, max_hold: Duration::from_mins(1) }
    }
}

// === impl Retry ===

impl Retry {
    /// With these settings, whose budget is a share.
    pub fn new(settings: Settings) -> Self {
        let Settings { budget, budget_floor, .. } = settings;
        let share = |_| TpsBudget::new(BUDGET_WINDOW, budget_floor.div_ceil(2), budget);
        Self {
            settings,
            budget: Arc::new(TpsBudget::new(BUDGET_WINDOW, budget_floor, budget)),
            shares: (0..SHARES).map(share).collect(),
            poison: Arc::default(),
        }
    }

    /// With other settings, and with the history of this one: the requests that were present at deaths,
    /// and what is left of the budget unless its own settings change.
    pub fn reconfigured(&self, settings: Settings) -> Self {
        let has_same_budget = self.settings.budget.total_cmp(&settings.budget).is_eq()
            && self.settings.budget_floor == settings.budget_floor;
        let mut next = Self { poison: self.poison.clone(), ..Self::new(settings) };
        if has_same_budget {
            (next.budget, next.shares) = (self.budget.clone(), self.shares.clone());
        }
        next
    }

    /// How long an answer without output is held back.
    pub(super) const fn max_hold(&self) -> Duration {
        self.settings.max_hold
    }

    /// Counts one more request of a caller.
    pub(super) fn deposit(&self, caller: Caller) {
        self.budget.deposit();
        self.shares[caller.0].deposit();
    }

    /// Whether a request that has failed may go to another backend.
    pub(super) fn allow(
        &self,
        caller: Caller,
        failed: Failed<'_>,
        now: Instant,
    ) -> Result<(), NotRetried> {
        let Failed { symptom, times, has_effects, body } = failed;
        let is_poison = symptom.is_death() && self.poison.on_death(xxh3_64(body), now);
        match symptom.elsewhere() {
            Elsewhere::Always => Ok(()),
            Elsewhere::Never => Err(NotRetried::Rule),
            Elsewhere::Perhaps if has_effects => Err(NotRetried::Effects),
            Elsewhere::Perhaps if is_poison => Err(NotRetried::Poison),
            Elsewhere::Perhaps if times > self.settings.attempts => Err(NotRetried::Attempts),
            // The caller's share first: a caller without a share must not use up the whole budget.
            Elsewhere::Perhaps if !self.shares[caller.0].withdraw() => Err(NotRetried::Budget),
            Elsewhere::Perhaps if self.budget.withdraw() => Ok(()),
            Elsewhere::Perhaps => Err(NotRetried::Budget),
        }
    }
}

// === impl Caller ===

impl Caller {
    /// The caller of a request.
    pub(super) fn of(record: &RequestRecord) -> Self {
        let hash = match (&record.caller, record.client) {
            (Some(caller), _) => xxh3_64(caller.tenant.as_bytes()),
            (None, IpAddr::V4(address)) => xxh3_64(&address.octets()),
            // A client that has an IPv6 network has all its addresses: the network counts.
            (None, IpAddr::V6(address)) => xxh3_64(&address.octets()[..8]),
        };
        Self(hash as usize % SHARES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::clock;

    const CALLER: Caller = Caller(0);

    fn failed(symptom: Symptom, times: u32) -> Failed<'static> {
        Failed { symptom, times, has_effects: false, body: b"{}" }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_replica_has_not_had_goes_on_in_any_case() {
        let retry = Retry::new(Settings { attempts: 0, budget: 0.0, ..Settings::default() });
        for times in 0..100 {
            let failed = Failed { has_effects: true, ..failed(Symptom::Unreachable, times) };
            assert_eq!(retry.allow(CALLER, failed, clock::now()), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_effects_is_sent_once() {
        let retry = Retry::new(Settings::default());
        let failed = Failed { has_effects: true, ..failed(Symptom::Busy, 1) };
        assert_eq!(retry.allow(CALLER, failed, clock::now()), Err(NotRetried::Effects));
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_counted_and_time_that_is_up_is_up() {
        let retry = Retry::new(Settings::default());
        for (times, allowed) in [(1, true), (2, true), (3, false)] {
            let result = retry.allow(CALLER, failed(Symptom::Busy, times), clock::now());
            assert_eq!(result.is_ok(), allowed, "{times}");
        }
        let late = retry.allow(CALLER, failed(Symptom::SlowOutput, 1), clock::now());
        assert_eq!(late, Err(NotRetried::Rule));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_there_at_two_deaths_is_not_sent_to_a_third_replica() {
        let retry = Retry::new(Settings::default());
        assert_eq!(retry.allow(CALLER, failed(Symptom::Died, 1), clock::now()), Ok(()));
        let second = retry.allow(CALLER, failed(Symptom::EngineDead, 2), clock::now());
        assert_eq!(second, Err(NotRetried::Poison));
    }

    fn allowed(retry: &Retry, caller: Caller) -> usize {
        let may = |_: &i32| retry.allow(caller, failed(Symptom::Busy, 1), clock::now()).is_ok();
        (0..1_000).filter(may).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_fifth_of_all_requests_may_be_sent_again_and_ten_in_a_second() {
        let retry = Retry::new(Settings::default());
        let callers = [Caller(0), Caller(1), Caller(2)];
        let sum = || callers.iter().map(|caller| allowed(&retry, *caller)).sum::<usize>();
        assert_eq!(sum(), 100, "the floor of ten seconds");
        (0..1_000).for_each(|_| callers.iter().for_each(|caller| retry.deposit(*caller)));
        assert_eq!(sum(), 600);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_whose_requests_all_fail_leaves_the_others_their_share_of_the_budget() {
        let retry = Retry::new(Settings::default());
        let (greedy, other) = (Caller(1), Caller(2));
        (0..1_000).for_each(|_| retry.deposit(greedy));
        (0..100).for_each(|_| retry.deposit(other));
        assert_eq!(allowed(&retry, greedy), 200 + 50, "its own fifth and half of the floor");
        assert_eq!(allowed(&retry, other), 20 + 50);
    }

    #[test]
    fn callers_are_told_apart_by_tenant_and_else_by_address() {
        let mut record = tokenweir_core::record::sample::streamed();
        record.caller = None;
        let mut slot = |address: &str| {
            record.client = address.parse().unwrap();
            Caller::of(&record).0
        };
        assert_ne!(slot("192.0.2.1"), slot("192.0.2.2"));
        assert_eq!(slot("2001:db8::1"), slot("2001:db8::2"), "one client has the whole network");
    }

    #[tokio::test(start_paused = true)]
    async fn other_settings_keep_the_deaths_and_the_same_budget() {
        let settings = Settings { budget: 0.0, budget_floor: 1, ..Settings::default() };
        let retry = Retry::new(settings);
        let busy = |retry: &Retry| retry.allow(CALLER, failed(Symptom::Busy, 1), clock::now());
        assert_eq!(retry.allow(CALLER, failed(Symptom::Died, 1), clock::now()), Ok(()));
        (0..9).for_each(|_| assert_eq!(busy(&retry), Ok(())));
        assert_eq!(busy(&retry), Err(NotRetried::Budget));
        let retry = retry.reconfigured(Settings { attempts: 5, ..settings });
        assert_eq!(retry.settings.attempts, 5);
        assert_eq!(busy(&retry), Err(NotRetried::Budget), "the budget stays used");
        let retry = retry.reconfigured(Settings { budget_floor: 2, ..settings });
        assert_eq!(busy(&retry), Ok(()), "another budget is a new one");
        let second = retry.allow(CALLER, failed(Symptom::Died, 2), clock::now());
        assert_eq!(second, Err(NotRetried::Poison), "the first death was before two changes");
    }
}
