//! How often a replica is looked at: often while it matters, seldom while nothing happens, and
//! never so often that the looks are a load of their own.

use std::time::Duration;

/// What a look found, as far as it says how soon the next one should be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Signs {
    /// Requests of this gateway at the replica.
    pub(super) in_flight: u32,
    /// Whether requests wait in its engine.
    pub(super) is_waiting: bool,
    /// Share of its KV cache that requests hold.
    pub(super) kv_usage: f64,
    /// Whether it said something else than the time before: it works, for whomever.
    pub(super) has_changed: bool,
    /// Whether it is not known to be up.
    pub(super) is_down: bool,
}

/// A page may take this share of the time at most: the pause after it is so many times as long as
/// it took. Rendering it holds up the replica's API loop, so this bounds what looking costs the
/// replica to 1/21 of the loop's time, if the whole wait was rendering; mostly it is less. Only a page
/// that takes longer than half a second costs more, by [`LONGEST_REST`].
const REST: u32 = 20;
/// A rest is not longer than this: one Prometheus at its usual pace asks as often, and a sample that is
/// older than 15 s counts as none.
const LONGEST_REST: Duration = Duration::from_secs(10);
/// KV usage from which a replica that works is looked at more often, and by which most often.
const KV_USAGE: (f64, f64) = (0.5, 0.9);
/// A pause grows by this factor.
const GROWTH: f64 = 1.5;
/// Looks at all replicas together in a second, at most: a gateway that looked ten times a second at
/// each of a thousand would do little else.
const LOOKS: u32 = 1_000;

impl Signs {
    /// How much it matters to know the replica's state, from 0 (idle) to 1.
    ///
    /// ```text
    /// n ÷ (n + 1) for n requests in flight; 0.5 if its numbers change or it is down, more from
    /// half a KV cache on; 1 if requests wait; the largest of these
    /// ```
    pub(super) fn strain(self) -> f64 {
        if self.is_waiting {
            return 1.0;
        }
        let own = f64::from(self.in_flight) / (f64::from(self.in_flight) + 1.0);
        // An idle engine may go on telling the usage of its last step.
        let works = self.in_flight > 0 || self.has_changed;
        let full = (self.kv_usage - KV_USAGE.0) / (KV_USAGE.1 - KV_USAGE.0);
        let pressure = if works { full.clamp(0.0, 1.0) } else { 0.0 };
        let change = if self.has_changed || self.is_down { 0.5 } else { 0.0 };
        own.max(pressure).max(change)
    }
}

/// The pause after one of `before`. It goes toward `most · (least ÷ most)^strain`, by half at a time
/// when that is shorter, by half as much again when it is longer: a burst is followed within a few
/// looks, and a short lull is not the end of it.
pub(super) fn pause(before: Duration, strain: f64, least: Duration, most: Duration) -> Duration {
    let (least, most) = (least.as_secs_f64(), most.as_secs_f64().max(least.as_secs_f64()));
    let target = (most * (least / most).powf(strain.clamp(0.0, 1.0))).clamp(least, most);
    let before = before.as_secs_f64().clamp(least, most);
    let next =
        if before > target { (before / 2.0).max(target) } else { (before * GROWTH).min(target) };
    Duration::from_secs_f64(next)
}

/// The pause under load in a fleet of so many replicas.
pub(super) fn least(min_interval: Duration, replicas: usize) -> Duration {
    let replicas = u32::try_from(replicas).unwrap_or(u32::MAX);
    min_interval.max(Duration::from_secs(1).saturating_mul(replicas) / LOOKS)
}

/// How long a replica is left alone after a page that took this long.
pub(super) fn rest(took: Duration) -> Duration {
    took.saturating_mul(REST).min(LONGEST_REST)
}

/// A pause made up to 10 % shorter or longer, by luck from 0 to 1, so that gateways do not fall
/// into step.
pub(super) fn jittered(pause: Duration, luck: f64) -> Duration {
    pause.mul_f64(0.9 + 0.2 * luck.clamp(0.0, 1.0))
}

/// A pause made up to an eighth shorter or longer, so that it ends together with those of others:
/// looks that share a wake-up cost half of what they cost alone. It ends at a multiple of a power
/// of two of milliseconds from the origin.
pub(super) fn aligned(since_origin: Duration, pause: Duration) -> Duration {
    let Some(bits) = (pause.as_millis() / 4).checked_ilog2() else { return pause };
    let step = Duration::from_millis(1 << bits).as_nanos();
    let end = (since_origin + pause).as_nanos();
    let end = u64::try_from((end + step / 2) / step * step).unwrap_or(u64::MAX);
    Duration::from_nanos(end).saturating_sub(since_origin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEAST: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_secs(5);

    fn settled(signs: Signs) -> Duration {
        (0..40).fold(Duration::from_secs(1), |before, _| pause(before, signs.strain(), LEAST, MOST))
    }

    #[test]
    fn a_large_fleet_is_not_looked_at_more_often_than_a_thousand_times_a_second() {
        for replicas in [0, 1, 16, 100] {
            assert_eq!(least(LEAST, replicas), LEAST);
        }
        assert_eq!(least(LEAST, 1_000), Duration::from_secs(1));
        assert_eq!(least(MOST, 1_000), MOST, "who wants it less often has it so");
    }

    #[test]
    fn an_idle_replica_is_looked_at_seldom_and_one_under_load_often() {
        assert_eq!(settled(Signs::default()), MOST);
        assert_eq!(settled(Signs { is_waiting: true, ..Signs::default() }), LEAST);
        assert!(settled(Signs { in_flight: 100, ..Signs::default() }) < LEAST.mul_f64(1.1));
        let full = Signs { kv_usage: 0.95, has_changed: true, ..Signs::default() };
        assert_eq!(settled(full), LEAST);
    }

    #[test]
    fn more_requests_in_flight_never_make_it_slower() {
        let pauses: Vec<Duration> =
            (0..50).map(|in_flight| settled(Signs { in_flight, ..Signs::default() })).collect();
        assert!(pauses.windows(2).all(|pair| pair[0] >= pair[1]), "{pauses:?}");
        // One request alone: between the two, on the scale of factors.
        assert!((pauses[1].as_secs_f64() - 0.707).abs() < 0.001, "{:?}", pauses[1]);
    }

    #[test]
    fn a_full_cache_of_an_idle_engine_is_no_load() {
        assert_eq!(settled(Signs { kv_usage: 1.0, ..Signs::default() }), MOST);
    }

    #[test]
    fn it_halves_under_load_and_grows_by_half_when_that_ends() {
        let busy = |before| pause(before, 1.0, LEAST, MOST);
        let idle = |before| pause(before, 0.0, LEAST, MOST);
        assert_eq!(busy(MOST), Duration::from_millis(2_500));
        assert_eq!(busy(LEAST), LEAST);
        assert_eq!(idle(LEAST), Duration::from_millis(150));
        assert_eq!(idle(MOST), MOST);
        // From the slowest to the fastest in six looks.
        assert_eq!((0..6).fold(MOST, |before, _| busy(before)), LEAST);
    }

    #[test]
    fn looks_take_less_than_a_twentieth_of_the_time() {
        let took = Duration::from_millis(30);
        assert!(took.as_secs_f64() / (took + rest(took)).as_secs_f64() < 0.05);
    }

    /// A page of 2.3 s was followed by a rest of 46 s, in which the replica counted as silent.
    #[test]
    fn a_replica_whose_page_is_slow_does_not_count_as_silent_between_two_looks() {
        let took = Duration::from_millis(2_300);
        assert!(took + rest(took) < Duration::from_secs(15));
        assert_eq!(rest(Duration::MAX), LONGEST_REST);
    }

    #[test]
    fn pauses_of_one_length_end_at_few_moments() {
        let ends: std::collections::BTreeSet<Duration> = (0..1_000)
            .map(Duration::from_millis)
            .map(|begun| begun + aligned(begun, Duration::from_secs(1)))
            .collect();
        assert!(ends.len() <= 9, "{ends:?}");
    }

    proptest! {
        #[test]
        fn an_aligned_pause_is_nearly_as_long(begun in 0_u64..u64::MAX / 4, millis in 0_u64..60_000) {
            let pause = Duration::from_millis(millis);
            let aligned = aligned(Duration::from_nanos(begun), pause);
            prop_assert!(aligned.abs_diff(pause) <= pause / 8);
        }

        #[test]
        fn every_pause_is_within_its_bounds(
            before in 0_u64..20_000, strain in -1.0..2.0, least in 1_u64..5_000, more in 0_u64..60_000,
            luck in 0.0..1.0,
        ) {
            let (least, most) = (Duration::from_millis(least), Duration::from_millis(least + more));
            let pause = pause(Duration::from_millis(before), strain, least, most);
            let slack = Duration::from_nanos(2);
            prop_assert!(pause + slack >= least && pause <= most + slack);
            let jittered = jittered(pause, luck);
            prop_assert!(jittered >= pause.mul_f64(0.899) && jittered <= pause.mul_f64(1.101));
        }
    }
}
