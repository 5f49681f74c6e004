//! Whether a request that a replica failed goes to another one.

use crate::record::NotRetried;
use crate::resilience::{Elsewhere, Poison, Symptom};
use crate::units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::retry::budget::{Budget, TpsBudget};

/// How often requests are sent to another replica.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How many other replicas may have a request after the first one failed it. Those that took no
    /// connection do not count.
    pub attempts: u32,
    /// Share of all requests that may be sent again, from 0 to 1.
    pub budget: f32,
    /// As many in a second may be sent again in any case.
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
    poison: Arc<Poison>,
}

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
        Self {
            settings,
            budget: Arc::new(TpsBudget::new(BUDGET_WINDOW, budget_floor, budget)),
            poison: Arc::default(),
        }
    }

    /// With other settings, and with the history of this one: the requests that were present at deaths,
    /// and what is left of the budget unless its own settings change.
    pub fn reconfigured(&self, settings: Settings) -> Self {
        let has_same_budget = self.settings.budget.total_cmp(&settings.budget).is_eq()
            && self.settings.budget_floor == settings.budget_floor;
        let budget = has_same_budget.then(|| self.budget.clone());
        let new = Self::new(settings);
        Self { budget: budget.unwrap_or(new.budget), poison: self.poison.clone(), ..new }
    }

    /// How long an answer without output is held back.
    pub(super) const fn max_hold(&self) -> Duration {
        self.settings.max_hold
    }

    /// There is one more request.
    pub(super) fn deposit(&self) {
        self.budget.deposit();
    }

    /// Whether a request that has failed may go to another replica.
    pub(super) fn allow(&self, failed: Failed<'_>, now: Instant) -> Result<(), NotRetried> {
        let Failed { symptom, times, has_effects, body } = failed;
        let is_poison =
            symptom.is_death() && self.poison.on_death(xxhash_rust::xxh3::xxh3_64(body), now);
        match symptom.elsewhere() {
            Elsewhere::Always => Ok(()),
            Elsewhere::Never => Err(NotRetried::Rule),
            Elsewhere::Perhaps if has_effects => Err(NotRetried::Effects),
            Elsewhere::Perhaps if is_poison => Err(NotRetried::Poison),
            Elsewhere::Perhaps if times > self.settings.attempts => Err(NotRetried::Attempts),
            Elsewhere::Perhaps if self.budget.withdraw() => Ok(()),
            Elsewhere::Perhaps => Err(NotRetried::Budget),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn failed(symptom: Symptom, times: u32) -> Failed<'static> {
        Failed { symptom, times, has_effects: false, body: b"{}" }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_replica_has_not_had_goes_on_in_any_case() {
        let retry = Retry::new(Settings { attempts: 0, budget: 0.0, ..Settings::default() });
        for times in 0..100 {
            let failed = Failed { has_effects: true, ..failed(Symptom::Unreachable, times) };
            assert_eq!(retry.allow(failed, clock::now()), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_effects_is_sent_once() {
        let retry = Retry::new(Settings::default());
        let failed = Failed { has_effects: true, ..failed(Symptom::Busy, 1) };
        assert_eq!(retry.allow(failed, clock::now()), Err(NotRetried::Effects));
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_counted_and_time_that_is_up_is_up() {
        let retry = Retry::new(Settings::default());
        for (times, allowed) in [(1, true), (2, true), (3, false)] {
            let result = retry.allow(failed(Symptom::Busy, times), clock::now());
            assert_eq!(result.is_ok(), allowed, "{times}");
        }
        let late = retry.allow(failed(Symptom::SlowOutput, 1), clock::now());
        assert_eq!(late, Err(NotRetried::Rule));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_there_at_two_deaths_is_not_sent_to_a_third_replica() {
        let retry = Retry::new(Settings::default());
        assert_eq!(retry.allow(failed(Symptom::Died, 1), clock::now()), Ok(()));
        let second = retry.allow(failed(Symptom::EngineDead, 2), clock::now());
        assert_eq!(second, Err(NotRetried::Poison));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fifth_of_all_requests_may_be_sent_again_and_ten_in_a_second() {
        let retry = Retry::new(Settings::default());
        let allowed = |retry: &Retry| {
            (0..1_000)
                .filter(|_| retry.allow(failed(Symptom::Busy, 1), clock::now()).is_ok())
                .count()
        };
        assert_eq!(allowed(&retry), 100, "the floor of ten seconds");
        (0..1_000).for_each(|_| retry.deposit());
        assert_eq!(allowed(&retry), 200);
    }
    #[tokio::test(start_paused = true)]
    async fn other_settings_keep_the_deaths_and_the_same_budget() {
        let settings = Settings { budget: 0.0, budget_floor: 1, ..Settings::default() };
        let retry = Retry::new(settings);
        let busy = |retry: &Retry| retry.allow(failed(Symptom::Busy, 1), clock::now());
        assert_eq!(retry.allow(failed(Symptom::Died, 1), clock::now()), Ok(()));
        (0..9).for_each(|_| assert_eq!(busy(&retry), Ok(())));
        assert_eq!(busy(&retry), Err(NotRetried::Budget));
        let retry = retry.reconfigured(Settings { attempts: 5, ..settings });
        assert_eq!(retry.settings.attempts, 5);
        assert_eq!(busy(&retry), Err(NotRetried::Budget), "the budget stays used");
        let retry = retry.reconfigured(Settings { budget_floor: 2, ..settings });
        assert_eq!(busy(&retry), Ok(()), "another budget is a new one");
        let second = retry.allow(failed(Symptom::Died, 2), clock::now());
        assert_eq!(second, Err(NotRetried::Poison), "the first death was before two changes");
    }
}
