//! A moving p99: of the durations of the last minutes, in two windows that take turns. A window is
//! a histogram of fixed size, so that any number of requests costs the same memory, and adding one
//! allocates nothing.

use std::time::{Duration, Instant};

/// Durations of the last minutes.
#[derive(Debug)]
pub(super) struct Moving {
    windows: [Window; 2],
    /// When the first of them began to be filled.
    since: Option<Instant>,
    /// Values since the p99 was last looked for.
    unread: u32,
    /// The bucket of the p99. `None`: there are too few values.
    p99: Option<usize>,
}

type Window = [u32; BUCKETS];

/// How long a window is filled. What is older than two of them is forgotten.
const WINDOW: Duration = Duration::from_mins(2);
/// Fewer values say nothing about their p99.
const ENOUGH: u32 = 200;
/// The p99 is looked for once for as many values.
const READ_EVERY: u32 = 32;
/// A bucket is 2^(1/8) times as wide as the one before it: 9 %.
const BUCKETS_OF_DOUBLING: f64 = 8.0;
/// From 1 ms to more than an hour.
const SHORTEST: f64 = 0.001;
const BUCKETS: usize = 22 * 8 + 1;

// === impl Moving ===

impl Moving {
    /// Adds a value that was measured at `now`. Whether it is longer than the p99 of those before
    /// it, to within a bucket: never more than 1 % are, unless they grow longer.
    pub(super) fn add(&mut self, value: Duration, now: Instant) -> bool {
        self.turn(now);
        let bucket = bucket(value);
        let is_over = self.p99.is_some_and(|p99| bucket > p99);
        self.windows[0][bucket] = self.windows[0][bucket].saturating_add(1);
        self.unread += 1;
        if self.unread >= READ_EVERY {
            self.read();
        }
        is_over
    }

    /// Begins the next window when this one is full.
    fn turn(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let age = now.saturating_duration_since(since);
        if age < WINDOW {
            return;
        }
        let [current, before] = &mut self.windows;
        if age < WINDOW * 2 {
            std::mem::swap(current, before);
        } else {
            before.fill(0);
        }
        current.fill(0);
        self.since = Some(now);
        self.read();
    }

    /// Looks for the lowest bucket that has at most 1 % of the values above it.
    fn read(&mut self) {
        self.unread = 0;
        let [current, before] = &self.windows;
        let both = || current.iter().zip(before).map(|(a, b)| a.saturating_add(*b));
        let total = both().fold(0, u32::saturating_add);
        let mut above = 0;
        let is_p99 = |count| {
            above += count;
            above > total / 100
        };
        self.p99 = both().rev().position(is_p99).map(|from_last| BUCKETS - 1 - from_last);
        if total < ENOUGH {
            self.p99 = None;
        }
    }
}

impl Default for Moving {
    fn default() -> Self {
        Self { windows: [[0; BUCKETS]; 2], since: None, unread: 0, p99: None }
    }
}

fn bucket(value: Duration) -> usize {
    let place = (value.as_secs_f64() / SHORTEST).log2() * BUCKETS_OF_DOUBLING;
    // Below the shortest the place is negative, and a float becomes zero.
    (place.ceil() as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::clock;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn nothing_is_slow_among_too_few_or_among_equals() {
        let now = clock::now();
        let mut few = Moving::default();
        assert!((0..u64::from(ENOUGH - READ_EVERY)).all(|n| !few.add(millis(1 << (n % 20)), now)));
        let mut equal = Moving::default();
        assert!((0..10_000).all(|_| !equal.add(millis(50), now)));
    }

    #[test]
    fn what_is_longer_than_nearly_all_before_it_is_slow_and_no_more_than_one_in_a_hundred() {
        let now = clock::now();
        let mut random = fastrand::Rng::with_seed(3);
        let mut moving = Moving::default();
        // Log-normal in shape: the product of many small factors.
        let mut value =
            || millis((0..12).fold(100.0, |v, _| v * (0.8 + 0.45 * random.f64())) as u64);
        let values: Vec<Duration> = (0..50_000).map(|_| value()).collect();
        let mut sorted = values.clone();
        sorted.sort_unstable();
        let p99 = sorted[values.len() * 99 / 100];
        let slow: Vec<Duration> =
            values.iter().copied().filter(|value| moving.add(*value, now)).collect();
        assert!(slow.len() < values.len() / 90, "{} of {}", slow.len(), values.len());
        // A bucket is 9 % wide, and the first p99s are of few values.
        let is_well_over = |value: &&Duration| **value > p99.mul_f64(1.1);
        let all = values[5_000..].iter().filter(is_well_over).count();
        let found = slow.iter().filter(is_well_over).count();
        assert!(all > 0 && found * 10 >= all * 9, "{found} of {all}");
    }

    #[test]
    fn what_is_usual_is_learned_anew_within_minutes() {
        let mut now = clock::now();
        let mut moving = Moving::default();
        (0..1_000).for_each(|_| assert!(!moving.add(millis(10), now)));
        assert!(moving.add(millis(1_000), now));
        for _ in 0..3 {
            now += WINDOW;
            for _ in 0..1_000 {
                moving.add(millis(1_000), now);
            }
        }
        assert!(!moving.add(millis(1_000), now));
        // After a long silence nothing is known.
        assert!(moving.add(millis(9_000), now));
        assert!(!moving.add(millis(9_000), now + 3 * WINDOW));
    }

    #[test]
    fn every_duration_has_a_bucket() {
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(millis(1)), 0);
        assert_eq!(bucket(millis(2)), 8);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }
}
