//! Computes the adaptive scrape interval of a backend. The interval is short under load and long for an idle
//! backend. A lower bound keeps scrapes to a small part of the backend's time.

use std::time::Duration;

/// The state of a backend that determines how soon the next scrape is due.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BackendActivity {
    /// Number of requests of this gateway in flight on the backend.
    pub(super) in_flight: u32,
    pub(super) has_waiting_requests: bool,
    /// KV cache usage of the backend, from 0 to 1.
    pub(super) kv_usage: f64,
    /// Whether the loads of the last two scrapes differ. Then the engine works, possibly for other
    /// gateways.
    pub(super) has_changed: bool,
    /// Whether the health of the backend is down or unknown, or its engine is paused.
    pub(super) is_down: bool,
}

/// Backoff after a scrape, as a multiple of the duration of the scrape. The API event loop of the backend is
/// blocked while the backend renders the metrics page. With this factor, scrapes take at most 1/21 of the time
/// of the event loop. If a scrape takes longer than half a second, [`MAX_BACKOFF`] limits the backoff and the
/// share is larger.
const BACKOFF_FACTOR: u32 = 20;
/// Maximum backoff after a scrape. It equals the usual scrape interval of a Prometheus server, and
/// is below 15 s, the age above which a sample of the load counts as missing.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Range of KV usage in which the urgency of the next scrape of a working backend rises. The urgency reaches 1
/// at the upper end.
const KV_USAGE_URGENCY_RANGE: (f64, f64) = (0.5, 0.9);
/// Factor by which the interval grows from scrape to scrape while the urgency is low.
const INTERVAL_GROWTH_FACTOR: f64 = 1.5;
/// Maximum number of scrapes of all backends per second. It bounds the CPU time that a gateway
/// spends on scrapes in a large pool.
const MAX_SCRAPES_PER_SECOND: u32 = 1_000;

impl BackendActivity {
    /// The urgency of the next scrape, from 0 (idle) to 1. It is the maximum of these values:
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
        let in_flight_urgency = f64::from(self.in_flight) / (f64::from(self.in_flight) + 1.0);
        // An idle engine may still report the KV usage of its last step. That usage must not count.
        let is_working = self.in_flight > 0 || self.has_changed;
        let fullness = (self.kv_usage - KV_USAGE_URGENCY_RANGE.0)
            / (KV_USAGE_URGENCY_RANGE.1 - KV_USAGE_URGENCY_RANGE.0);
        let kv_usage_urgency = if is_working {
            fullness.clamp(0.0, 1.0)
        } else {
            0.0
        };
        let change_urgency = if self.has_changed || self.is_down {
            0.5
        } else {
            0.0
        };
        in_flight_urgency.max(kv_usage_urgency).max(change_urgency)
    }
}

/// The interval that follows the interval `previous`. The target is `max · (min ÷ max)^urgency`. An interval
/// above the target is halved, but not below the target. An interval below the target grows by
/// [`INTERVAL_GROWTH_FACTOR`], up to the target. So a burst shortens the interval within a few scrapes, and a
/// brief pause of the load does not lengthen it much.
pub(super) fn next_interval(
    previous: Duration,
    urgency: f64,
    min: Duration,
    max: Duration,
) -> Duration {
    let min = min.as_secs_f64();
    let max = max.as_secs_f64().max(min);
    let target = (max * (min / max).powf(urgency.clamp(0.0, 1.0))).clamp(min, max);
    let previous = previous.as_secs_f64().clamp(min, max);
    let next = if previous > target {
        (previous / 2.0).max(target)
    } else {
        (previous * INTERVAL_GROWTH_FACTOR).min(target)
    };
    Duration::from_secs_f64(next)
}

/// The minimum scrape interval of a backend in a pool of `backend_count` backends: the maximum of
/// `min_interval` and 1 ms for each backend.
pub(super) fn min_interval_for_pool(min_interval: Duration, backend_count: usize) -> Duration {
    let count = u32::try_from(backend_count).unwrap_or(u32::MAX);
    min_interval.max(Duration::from_secs(1).saturating_mul(count) / MAX_SCRAPES_PER_SECOND)
}

/// The minimum pause after a scrape that took `scrape_duration`.
pub(super) fn backoff(scrape_duration: Duration) -> Duration {
    scrape_duration
        .saturating_mul(BACKOFF_FACTOR)
        .min(MAX_BACKOFF)
}

/// The interval, changed by a random ±10 % at most, so that several gateways do not scrape at the same times.
/// `random` is a random number from 0 to 1.
pub(super) fn with_jitter(interval: Duration, random: f64) -> Duration {
    interval.mul_f64(0.9 + 0.2 * random.clamp(0.0, 1.0))
}

/// Changes the interval by at most one eighth, so that it ends together with the intervals of other backends.
/// Scrapes that start at one wake-up of the gateway cost half the CPU time. The aligned interval ends at a
/// multiple of the grid step after the origin. The step is a power of two, in milliseconds. `since_origin` is
/// the time from the origin to the start of the interval.
pub(super) fn align_to_grid(since_origin: Duration, interval: Duration) -> Duration {
    let Some(step_exponent) = (interval.as_millis() / 4).checked_ilog2() else {
        return interval;
    };
    let step = Duration::from_millis(1 << step_exponent).as_nanos();
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
            next_interval(
                previous,
                activity.scrape_urgency(),
                MIN_INTERVAL,
                MAX_INTERVAL,
            )
        })
    }

    #[test]
    fn pools_get_at_most_1000_scrapes_per_second() {
        for backend_count in [0, 1, 16, 100] {
            assert_eq!(
                min_interval_for_pool(MIN_INTERVAL, backend_count),
                MIN_INTERVAL
            );
        }
        assert_eq!(
            min_interval_for_pool(MIN_INTERVAL, 1_000),
            Duration::from_secs(1)
        );
        assert_eq!(
            min_interval_for_pool(MAX_INTERVAL, 1_000),
            MAX_INTERVAL,
            "a longer configured interval stays"
        );
    }

    #[test]
    fn load_shortens_the_interval_to_the_minimum() {
        let idle = BackendActivity::default();
        for (activity, expected) in [
            (idle, MAX_INTERVAL),
            (
                BackendActivity {
                    has_waiting_requests: true,
                    ..idle
                },
                MIN_INTERVAL,
            ),
            (
                BackendActivity {
                    kv_usage: 0.95,
                    has_changed: true,
                    ..idle
                },
                MIN_INTERVAL,
            ),
            // A full cache of an idle engine is no load.
            (
                BackendActivity {
                    kv_usage: 1.0,
                    ..idle
                },
                MAX_INTERVAL,
            ),
        ] {
            assert_eq!(converged_interval(activity), expected, "{activity:?}");
        }
        let busy = BackendActivity {
            in_flight: 100,
            ..idle
        };
        assert!(converged_interval(busy) < MIN_INTERVAL.mul_f64(1.1));
    }

    #[test]
    fn more_requests_never_lengthen_the_interval() {
        let intervals: Vec<Duration> = (0..50)
            .map(|in_flight| {
                converged_interval(BackendActivity {
                    in_flight,
                    ..BackendActivity::default()
                })
            })
            .collect();
        assert!(
            intervals.windows(2).all(|pair| pair[0] >= pair[1]),
            "{intervals:?}"
        );
        // One request has urgency 0.5, for which the interval is the geometric mean of minimum and maximum.
        assert!(
            (intervals[1].as_secs_f64() - 0.707).abs() < 0.001,
            "{:?}",
            intervals[1]
        );
    }

    #[test]
    fn the_interval_halves_and_grows_by_half() {
        let next_when_busy = |previous| next_interval(previous, 1.0, MIN_INTERVAL, MAX_INTERVAL);
        let next_when_idle = |previous| next_interval(previous, 0.0, MIN_INTERVAL, MAX_INTERVAL);
        assert_eq!(next_when_busy(MAX_INTERVAL), Duration::from_millis(2_500));
        assert_eq!(next_when_busy(MIN_INTERVAL), MIN_INTERVAL);
        assert_eq!(next_when_idle(MIN_INTERVAL), Duration::from_millis(150));
        assert_eq!(next_when_idle(MAX_INTERVAL), MAX_INTERVAL);
        // Six scrapes lead from the longest to the shortest interval.
        assert_eq!(
            (0..6).fold(MAX_INTERVAL, |previous, _| next_when_busy(previous)),
            MIN_INTERVAL
        );
    }

    #[test]
    fn scrapes_take_under_a_twentieth_of_the_time() {
        let took = Duration::from_millis(30);
        assert!(took.as_secs_f64() / (took + backoff(took)).as_secs_f64() < 0.05);
    }

    /// Regression: a scrape of 2.3 s caused a backoff of 46 s, in which the sample became stale.
    #[test]
    fn a_slow_page_does_not_become_stale() {
        let took = Duration::from_millis(2_300);
        assert!(took + backoff(took) < Duration::from_secs(15));
        assert_eq!(backoff(Duration::MAX), MAX_BACKOFF);
    }

    #[test]
    fn aligned_intervals_end_together() {
        let ends: std::collections::BTreeSet<Duration> = (0..1_000)
            .map(Duration::from_millis)
            .map(|start| start + align_to_grid(start, Duration::from_secs(1)))
            .collect();
        assert!(ends.len() <= 9, "{ends:?}");
    }

    proptest! {
        #[test]
        fn alignment_changes_at_most_an_eighth(
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
