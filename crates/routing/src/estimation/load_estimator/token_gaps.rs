//! The mean time between two tokens of a sequence in the engine during the last second, computed from the sums
//! in its reports.

use super::super::load_report::TokenGapSum;
use std::sync::Mutex;
use tokenweir_protocol::atomic::AtomicF64;
use tokenweir_protocol::mutex::lock;

/// The recent gaps between tokens.
#[derive(Debug, Default)]
pub(super) struct TokenGaps {
    slowed_mean: AtomicF64,
    sums: Mutex<GapSums>,
}

#[derive(Debug, Default)]
struct GapSums {
    /// Time of the last report in seconds. `None`: no report yet.
    reported_at: Option<f64>,
    last: TokenGapSum,
    /// The recent gaps. The weight of a gap falls to 37 % within [`TIME_CONSTANT_SECONDS`].
    recent: TokenGapSum,
    /// The minimum of the mean since the start of the engine. `None`: not known.
    least_mean: Option<f64>,
}

/// Age at which a gap has a weight of 37 %. It spans about ten scrapes, but less than a response.
const TIME_CONSTANT_SECONDS: f64 = 1.0;
/// Maximum ratio of the mean gap to its minimum at which the engine does not count as slowed down. Fewer
/// requests do not speed up an engine that is slow with few sequences.
const SLOWED_RATIO: f64 = 2.0;

impl TokenGaps {
    /// Adds the gaps since the last report. `now`: time of the scrape in seconds.
    pub(super) fn on_report(&self, total: Option<TokenGapSum>, now: f64) {
        let mut sums = lock(&self.sums);
        sums.add(total.unwrap_or_default(), now);
        self.slowed_mean.set(sums.slowed_mean());
    }

    /// The mean gap in seconds, if it is at least [`SLOWED_RATIO`] times the minimum. 0: below that, or not
    /// known.
    #[inline] // each candidate of each decision reads it once
    pub(super) fn slowed_mean(&self) -> f64 {
        self.slowed_mean.get()
    }

    /// Forgets the minimum, which belongs to an earlier process.
    pub(super) fn forget(&self) {
        lock(&self.sums).least_mean = None;
        self.slowed_mean.set(0.0);
    }
}

impl GapSums {
    fn add(&mut self, total: TokenGapSum, now: f64) {
        let seconds = total.seconds - self.last.seconds;
        let count = total.count - self.last.count;
        let age = self.reported_at.map_or(-1.0, |at| now - at);
        self.reported_at = Some(now);
        self.last = total;
        let is_valid = |value: &f64| (0.0..1e300).contains(value);
        if [seconds, count, age].iter().all(is_valid) {
            let weight = (-age / TIME_CONSTANT_SECONDS).exp();
            self.recent.seconds = self.recent.seconds * weight + seconds;
            self.recent.count = self.recent.count * weight + count;
        } else {
            self.recent = TokenGapSum::default();
        }
    }

    fn slowed_mean(&mut self) -> f64 {
        if self.recent.count < 1.0 {
            return 0.0;
        }
        let mean = self.recent.seconds / self.recent.count;
        let least = self.least_mean.map_or(mean, |least| least.min(mean));
        self.least_mean = Some(least);
        if mean < SLOWED_RATIO * least {
            0.0
        } else {
            mean
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports 100 gaps (ten tokens of each of ten sequences) in each of these seconds. Returns the last mean.
    fn after(gaps: &TokenGaps, seconds_per_gap: &[f64]) -> f64 {
        let mut total = TokenGapSum {
            seconds: 1_000.0,
            count: 1_000.0,
        };
        gaps.on_report(Some(total), 1.0);
        for (second, gap) in seconds_per_gap.iter().enumerate() {
            total.seconds += 100.0 * gap;
            total.count += 100.0;
            gaps.on_report(Some(total), 2.0 + second as f64);
        }
        gaps.slowed_mean()
    }

    #[test]
    fn the_mean_is_known_once_gaps_double() {
        assert!(after(&TokenGaps::default(), &[0.02, 0.02]) <= 0.0);
        let mean = after(&TokenGaps::default(), &[0.02, 0.1, 0.1, 0.1]);
        assert!((0.095..0.1).contains(&mean), "{mean}");
    }

    #[test]
    fn a_slow_engine_is_not_slowed_down() {
        assert!(after(&TokenGaps::default(), &[0.2; 20]) <= 0.0);
    }

    #[test]
    fn without_recent_gaps_there_is_no_mean() {
        let gaps = TokenGaps::default();
        assert!(after(&gaps, &[0.02, 0.1]) > 0.0);
        gaps.on_report(None, 4.0);
        assert!(
            gaps.slowed_mean() <= 0.0,
            "the engine reports no gaps any more"
        );
        assert!(after(&gaps, &[0.1, 0.1]) > 0.0);
        let same = TokenGapSum {
            seconds: 1_020.0,
            count: 1_200.0,
        };
        gaps.on_report(Some(same), 9.0);
        assert!(gaps.slowed_mean() <= 0.0, "no gap for six seconds");
        gaps.on_report(Some(TokenGapSum::default()), 10.0);
        assert!(gaps.slowed_mean() <= 0.0, "the engine started again");
    }
}
