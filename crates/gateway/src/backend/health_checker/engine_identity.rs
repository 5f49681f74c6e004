//! Distinguishes a restart of an engine from a second engine behind the same address. In both cases the start
//! time of the process on the metrics page changes, or the counters fall.
//!
//! After a restart, the start time is new and the counters begin at zero. Behind a load balancer, the page of
//! an earlier engine returns, with its known start time or its higher counters.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_protocol::limits::push_bounded;

/// The engines that have answered at the address of one backend.
#[derive(Debug, Default)]
pub(super) struct EngineIdentity {
    /// The start times of the last engines, in seconds since the Unix epoch.
    started: VecDeque<f64>,
    /// The last page before the counters fell, and the time of the fall. `None`: the counters have not fallen.
    lost: Option<(EngineLoad, Instant)>,
    /// When a page of an earlier engine last returned. `None`: never.
    returned_at: Option<Instant>,
}

/// The origin of a metrics page, as the page shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageOrigin {
    /// The process of the previous page.
    Same,
    Restarted,
    OtherEngine,
}

/// Maximum number of remembered start times.
const MAX_ENGINES: usize = 16;
/// Two start times belong to one process if they differ by at most this many seconds.
const SAME_START_SECONDS: f64 = 1.0;
/// The lowest value that counts as a time since the Unix epoch. Some engines report another kind of start time.
const MIN_UNIX_SECONDS: f64 = 1e8;
/// The usual maximum difference between the clocks of two machines, in seconds.
const CLOCK_SKEW_SECONDS: f64 = 30.0;
/// The page of an earlier engine must return within this time after the counters fell.
const RETURNS_WITHIN: Duration = Duration::from_secs(15);
/// Minimum number of tokens that the earlier engine had processed. A restarted engine is assumed to need longer
/// than [`RETURNS_WITHIN`] for as many.
const MIN_RETURNED_TOKENS: f64 = 2_000.0;
/// For this time after the last return of an earlier page, falling counters mean another engine, not a restart.
const ALTERNATES_FOR: Duration = Duration::from_mins(10);

impl EngineIdentity {
    /// Compares a page with the previous page, which was read `since` ago. `wall_seconds`: the time in seconds
    /// since the Unix epoch.
    pub(super) fn observe(
        &mut self,
        page: &EngineLoad,
        previous: &EngineLoad,
        since: Duration,
        wall_seconds: f64,
        now: Instant,
    ) -> PageOrigin {
        if let Some(started) = previous.started
            && !self.is_known(started)
        {
            push_bounded(&mut self.started, started, MAX_ENGINES);
        }
        if !page.is_restart_of(previous) {
            return self.observe_growth(page, previous, now);
        }
        let is_other = match page.started {
            Some(started) if is_new(started, previous) => {
                let age = wall_seconds - started;
                let is_time = started >= MIN_UNIX_SECONDS;
                self.is_known(started) || is_time && age > since.as_secs_f64() + CLOCK_SKEW_SECONDS
            }
            // A process that has just started has not processed many tokens.
            _ => {
                let has_worked = since <= RETURNS_WITHIN && tokens(page) >= MIN_RETURNED_TOKENS;
                has_worked || self.is_alternating(now)
            }
        };
        self.lost = Some((*previous, now));
        if !is_other {
            return PageOrigin::Restarted;
        }
        self.returned_at = Some(now);
        PageOrigin::OtherEngine
    }

    /// Handles a page whose counters have not fallen. If the counters jump to the values of the lost page, the
    /// page belongs to an earlier engine.
    fn observe_growth(
        &mut self,
        page: &EngineLoad,
        previous: &EngineLoad,
        now: Instant,
    ) -> PageOrigin {
        let Some((lost, fell_at)) = self.lost else {
            return PageOrigin::Same;
        };
        let lost_tokens = tokens(&lost);
        let has_jumped = tokens(page) >= lost_tokens
            && tokens(page) - tokens(previous) >= lost_tokens / 2.0
            && lost_tokens >= MIN_RETURNED_TOKENS;
        let is_soon = now.saturating_duration_since(fell_at) <= RETURNS_WITHIN;
        if !has_jumped || !is_soon {
            return PageOrigin::Same;
        }
        self.lost = None;
        self.returned_at = Some(now);
        PageOrigin::OtherEngine
    }

    fn is_known(&self, started: f64) -> bool {
        self.started
            .iter()
            .any(|known| (known - started).abs() <= SAME_START_SECONDS)
    }

    fn is_alternating(&self, now: Instant) -> bool {
        self.returned_at
            .is_some_and(|at| now.saturating_duration_since(at) < ALTERNATES_FOR)
    }
}

fn is_new(started: f64, previous: &EngineLoad) -> bool {
    previous
        .started
        .is_none_or(|earlier| (started - earlier).abs() > SAME_START_SECONDS)
}

fn tokens(page: &EngineLoad) -> f64 {
    page.prompt_tokens.unwrap_or(0.0) + page.generation_tokens.unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    const WALL_SECONDS: f64 = 1e9;

    fn page(started: Option<f64>, generated: f64) -> EngineLoad {
        EngineLoad {
            started,
            prompt_tokens: Some(0.0),
            generation_tokens: Some(generated),
            ..EngineLoad::default()
        }
    }

    /// The origins of all pages but the first. The pages are read at intervals of one second.
    fn origins(pages: &[EngineLoad]) -> Vec<PageOrigin> {
        let mut identity = EngineIdentity::default();
        let second = Duration::from_secs(1);
        let mut now = clock::epoch();
        let mut wall_seconds = WALL_SECONDS;
        let observe = |pair: &[EngineLoad]| {
            now += second;
            wall_seconds += 1.0;
            identity.observe(&pair[1], &pair[0], second, wall_seconds, now)
        };
        pages.windows(2).map(observe).collect()
    }

    #[test]
    fn a_process_that_ran_before_is_another_engine() {
        let first = page(Some(WALL_SECONDS - 900.0), 500.0);
        let second = page(Some(WALL_SECONDS - 800.0), 600.0);
        let seen = origins(&[first, second, first]);
        assert_eq!(seen, [PageOrigin::OtherEngine; 2]);
        let young = page(Some(WALL_SECONDS + 1.0), 0.0);
        assert_eq!(origins(&[first, young]), [PageOrigin::Restarted]);
        let seen = origins(&[first, young, first]);
        assert_eq!(seen[1], PageOrigin::OtherEngine, "it is known");
    }

    #[test]
    fn counters_that_return_are_those_of_another_engine() {
        let high = |more| page(None, 9_000.0 + more);
        let low = |more| page(None, 4_000.0 + more);
        let pages = [high(0.0), low(0.0), high(50.0), low(50.0), high(90.0)];
        assert_eq!(origins(&pages), [PageOrigin::OtherEngine; 4]);
        let small = page(None, 500.0);
        let pages = [high(0.0), small, high(50.0), small];
        let expected = [
            PageOrigin::Restarted,
            PageOrigin::OtherEngine,
            PageOrigin::OtherEngine,
        ];
        assert_eq!(origins(&pages), expected);
    }

    #[test]
    fn a_crash_loop_is_no_other_engine() {
        let run = (0..8).map(|step| page(None, 1_500.0 * f64::from(step)));
        let loops: Vec<EngineLoad> = run.clone().chain(run.clone()).chain(run).collect();
        let seen = origins(&loops);
        let restarts = seen.iter().filter(|it| **it == PageOrigin::Restarted);
        assert_eq!(restarts.count(), 2);
        assert!(!seen.contains(&PageOrigin::OtherEngine), "{seen:?}");
    }
}
