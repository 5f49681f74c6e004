//! Computes the adaptive scrape interval of a backend: short under load, long when idle, and long
//! enough that scrapes do not become a load of their own.

use std::time::Duration;

/// The state of a backend that determines how soon the next scrape is due.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BackendActivity {
    /// Requests of this gateway in flight on the backend.
    pub(super) in_flight: u32,
    /// Whether requests wait in its engine.
    pub(super) has_waiting_requests: bool,
    /// Share of its KV cache that requests hold, 0 to 1.
    pub(super) kv_usage: f64,
    /// Whether the last two scrapes differ: the engine works, possibly for other gateways.
    pub(super) has_changed: bool,
    /// Whether its health is down or unknown.
    pub(super) is_down: bool,
}

/// Backoff after a scrape, as a multiple of its duration. Rendering the page blocks the API event
/// loop of the backend. Even if the whole duration is rendering, scrapes take at most 1/21 of the
/// loop's time. A page that takes longer than half a second costs more, because of
/// [`MAX_BACKOFF`].
const BACKOFF_FACTOR: u32 = 20;
/// Maximum backoff. It is the usual scrape interval of one Prometheus, and it is below 15 s, the
/// age above which a sample counts as missing.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// KV usage at which the urgency of a working backend starts to rise, and at which it reaches 1.
const KV_USAGE_URGENCY_RANGE: (f64, f64) = (0.5, 0.9);
/// Factor by which the interval grows per scrape.
const INTERVAL_GROWTH_FACTOR: f64 = 1.5;
/// Maximum scrapes of all backends per second, which bounds the CPU time that a gateway spends on
/// scrapes of a large fleet.
const MAX_SCRAPES_PER_SECOND: u32 = 1_000;

impl BackendActivity {
    /// The urgency of the next scrape, from 0 (idle) to 1. The largest of:
    ///
    /// ```text
    /// n ÷ (n + 1)                for n requests in flight
    /// 0.5                        if the reported load changes or the backend is not up
    /// (usage - 0.5) ÷ 0.4        if the backend works and its KV usage is above one half
    /// 1                          if requests wait in the engine
    /// ```
    pub(super) fn scrape_urgency(self) -> f64 {
        if self.has_waiting_requests {
            return 1.0;
        }
        let local = f64::from(self.in_flight) / (f64::from(self.in_flight) + 1.0);
        // An idle engine may still report the KV usage of its last step.
        let is_working = self.in_flight > 0 || self.has_changed;
        let fullness = (self.kv_usage - KV_USAGE_URGENCY_RANGE.0)
            / (KV_USAGE_URGENCY_RANGE.1 - KV_USAGE_URGENCY_RANGE.0);
        let pressure = if is_working { fullness.clamp(0.0, 1.0) } else { 0.0 };
        let change = if self.has_changed || self.is_down { 0.5 } else { 0.0 };
        local.max(pressure).max(change)
    }
}

/// The interval after one of `previous`. It moves towards `max · (min ÷ max)^urgency`: it halves
/// down to a shorter target, and grows by [`INTERVAL_GROWTH_FACTOR`] up to a longer one. A burst is
/// followed within a few scrapes, and a short pause of the load does not reset the interval.
pub(super) fn next_interval(
    previous: Duration,
    urgency: f64,
    min: Duration,
    max: Duration,
) -> Duration {
    let (min, max) = (min.as_secs_f64(), max.as_secs_f64().max(min.as_secs_f64()));
    let target = (max * (min / max).powf(urgency.clamp(0.0, 1.0))).clamp(min, max);
    let previous = previous.as_secs_f64().clamp(min, max);
    let next = if previous > target {
        (previous / 2.0).max(target)
    } else {
        (previous * INTERVAL_GROWTH_FACTOR).min(target)
    };
    Duration::from_secs_f64(next)
}

/// The minimum interval in a pool of `backend_count` backends: at least 1 ms per backend.
pub(super) fn min_interval_for_fleet(min_interval: Duration, backend_count: usize) -> Duration {
    let count = u32::try_from(backend_count).unwrap_or(u32::MAX);
    min_interval.max(Duration::from_secs(1).saturating_mul(count) / MAX_SCRAPES_PER_SECOND)
}

/// How long a backend is not scraped after a scrape that took `took`.
pub(super) fn backoff(took: Duration) -> Duration {
    took.saturating_mul(BACKOFF_FACTOR).min(MAX_BACKOFF)
}

/// The interval changed by up to ±10 %, so that several gateways do not synchronize. `random` is
/// from 0 to 1.
pub(super) fn with_jitter(interval: Duration, random: f64) -> Duration {
    interval.mul_f64(0.9 + 0.2 * random.clamp(0.0, 1.0))
}

/// The interval changed by at most one eighth, so that it ends together with the intervals of other
/// backends: scrapes that share a wake-up cost half the CPU time. It ends at a multiple of a
/// power-of-two number of milliseconds from the origin.
pub(super) fn align_to_grid(since_origin: Duration, interval: Duration) -> Duration {
    let Some(bits) = (interval.as_millis() / 4).checked_ilog2() else { return interval };
    let step = Duration::from_millis(1 << bits).as_nanos();
    let end = (since_origin + interval).as_nanos();
    let end = u64::try_from((end + step / 2) / step * step).unwrap_or(u64::MAX);
    Duration::from_nanos(end).saturating_sub(since_origin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIN_INTERVAL: Duration = Duration::from_millis(100);
    const MAX_INTERVAL: Duration = Duration::from_secs(5);

    fn converged_interval(activity: BackendActivity) -> Duration {
        (0..40).fold(Duration::from_secs(1), |previous, _| {
            next_interval(previous, activity.scrape_urgency(), MIN_INTERVAL, MAX_INTERVAL)
        })
    }

    #[test]
    fn a_large_fleet_is_scraped_at_most_a_thousand_times_a_second() {
        for backend_count in [0, 1, 16, 100] {
            assert_eq!(min_interval_for_fleet(MIN_INTERVAL, backend_count), MIN_INTERVAL);
        }
        assert_eq!(min_interval_for_fleet(MIN_INTERVAL, 1_000), Duration::from_secs(1));
        assert_eq!(
            min_interval_for_fleet(MAX_INTERVAL, 1_000),
            MAX_INTERVAL,
            "a longer configured interval stays"
        );
    }

    #[test]
    fn an_idle_backend_has_the_max_interval_and_one_under_load_the_min_interval() {
        assert_eq!(converged_interval(BackendActivity::default()), MAX_INTERVAL);
        assert_eq!(
            converged_interval(BackendActivity {
                has_waiting_requests: true,
                ..BackendActivity::default()
            }),
            MIN_INTERVAL
        );
        assert!(
            converged_interval(BackendActivity { in_flight: 100, ..BackendActivity::default() })
                < MIN_INTERVAL.mul_f64(1.1)
        );
        let full =
            BackendActivity { kv_usage: 0.95, has_changed: true, ..BackendActivity::default() };
        assert_eq!(converged_interval(full), MIN_INTERVAL);
    }

    #[test]
    fn more_requests_in_flight_never_make_the_interval_longer() {
        let intervals: Vec<Duration> = (0..50)
            .map(|in_flight| {
                converged_interval(BackendActivity { in_flight, ..BackendActivity::default() })
            })
            .collect();
        assert!(intervals.windows(2).all(|pair| pair[0] >= pair[1]), "{intervals:?}");
        // One request has urgency 0.5: the geometric mean of the bounds.
        assert!((intervals[1].as_secs_f64() - 0.707).abs() < 0.001, "{:?}", intervals[1]);
    }

    #[test]
    fn a_full_cache_of_an_idle_engine_does_not_count_as_load() {
        assert_eq!(
            converged_interval(BackendActivity { kv_usage: 1.0, ..BackendActivity::default() }),
            MAX_INTERVAL
        );
    }

    #[test]
    fn the_interval_halves_under_load_and_grows_by_half_when_idle() {
        let busy = |previous| next_interval(previous, 1.0, MIN_INTERVAL, MAX_INTERVAL);
        let idle = |previous| next_interval(previous, 0.0, MIN_INTERVAL, MAX_INTERVAL);
        assert_eq!(busy(MAX_INTERVAL), Duration::from_millis(2_500));
        assert_eq!(busy(MIN_INTERVAL), MIN_INTERVAL);
        assert_eq!(idle(MIN_INTERVAL), Duration::from_millis(150));
        assert_eq!(idle(MAX_INTERVAL), MAX_INTERVAL);
        // From the longest to the shortest interval in six scrapes.
        assert_eq!((0..6).fold(MAX_INTERVAL, |previous, _| busy(previous)), MIN_INTERVAL);
    }

    #[test]
    fn scrapes_take_less_than_a_twentieth_of_the_time() {
        let took = Duration::from_millis(30);
        assert!(took.as_secs_f64() / (took + backoff(took)).as_secs_f64() < 0.05);
    }

    /// Regression: a scrape of 2.3 s caused a backoff of 46 s, in which the sample became stale.
    #[test]
    fn the_sample_of_a_slow_metrics_page_does_not_become_stale_during_the_backoff() {
        let took = Duration::from_millis(2_300);
        assert!(took + backoff(took) < Duration::from_secs(15));
        assert_eq!(backoff(Duration::MAX), MAX_BACKOFF);
    }

    #[test]
    fn aligned_intervals_of_the_same_length_end_at_few_moments() {
        let ends: std::collections::BTreeSet<Duration> = (0..1_000)
            .map(Duration::from_millis)
            .map(|start| start + align_to_grid(start, Duration::from_secs(1)))
            .collect();
        assert!(ends.len() <= 9, "{ends:?}");
    }

    proptest! {
        #[test]
        fn an_aligned_interval_differs_by_at_most_an_eighth(
            start in 0_u64..u64::MAX / 4, millis in 0_u64..60_000,
        ) {
            let interval = Duration::from_millis(millis);
            let aligned = align_to_grid(Duration::from_nanos(start), interval);
            prop_assert!(aligned.abs_diff(interval) <= interval / 8);
        }

        #[test]
        fn every_interval_is_within_its_bounds(
            previous in 0_u64..20_000, urgency in -1.0..2.0, min in 1_u64..5_000,
            range in 0_u64..60_000, random in 0.0..1.0,
        ) {
            let (min, max) = (Duration::from_millis(min), Duration::from_millis(min + range));
            let interval = next_interval(Duration::from_millis(previous), urgency, min, max);
            let slack = Duration::from_nanos(2);
            prop_assert!(interval + slack >= min && interval <= max + slack);
            let jittered = with_jitter(interval, random);
            prop_assert!(
                jittered >= interval.mul_f64(0.899) && jittered <= interval.mul_f64(1.101)
            );
        }
    }
}
