//! The mean time between two tokens of a sequence in the engine during the last second, computed from the sums
//! in its reports.

use super::super::load_report::TokenGapSum;
use tokenweir_protocol::atomic::AtomicF64;

/// The recent gaps between tokens. Only one task stores reports, so no update is lost.
#[derive(Debug, Default)]
pub(super) struct TokenGaps {
    /// Time of the last report in seconds. 0: no report yet.
    reported_at: AtomicF64,
    /// The sums of the last report.
    total_seconds: AtomicF64,
    total_count: AtomicF64,
    /// The sum of recent gaps. The weight of a gap falls to 37 % within [`TIME_CONSTANT_SECONDS`].
    recent_seconds: AtomicF64,
    recent_count: AtomicF64,
    /// The minimum of the mean since the start of the engine. 0: not known.
    least_mean: AtomicF64,
    /// The present value of [`TokenGaps::slowed_mean`].
    slowed_mean: AtomicF64,
}

/// Age at which a gap has a weight of 37 %. It spans about ten scrapes, but less than a response.
const TIME_CONSTANT_SECONDS: f64 = 1.0;
/// Minimum number of recent gaps for a mean.
const MIN_COUNT: f64 = 20.0;
/// Maximum ratio of the mean gap to its minimum at which the engine does not count as slowed down. Fewer
/// requests do not speed up an engine that is slow with few sequences.
const SLOWED_RATIO: f64 = 2.0;

impl TokenGaps {
    /// Adds the gaps since the last report. `now`: time of the scrape in seconds.
    pub(super) fn on_report(&self, total: Option<TokenGapSum>, now: f64) {
        let total = total.unwrap_or_default();
        let age = now - self.reported_at.get();
        let seconds = total.seconds - self.total_seconds.get();
        let count = total.count - self.total_count.get();
        let is_first = self.reported_at.get() <= 0.0;
        self.reported_at.set(now);
        self.total_seconds.set(total.seconds);
        self.total_count.set(total.count);
        let is_valid = [seconds, count, age]
            .iter()
            .all(|value| (0.0..1e300).contains(value));
        if is_first || !is_valid {
            self.recent_seconds.set(0.0);
            self.recent_count.set(0.0);
        } else {
            let weight = (-age / TIME_CONSTANT_SECONDS).exp();
            self.recent_seconds
                .set(self.recent_seconds.get() * weight + seconds);
            self.recent_count
                .set(self.recent_count.get() * weight + count);
        }
        self.slowed_mean.set(self.read_slowed_mean());
    }

    fn read_slowed_mean(&self) -> f64 {
        let count = self.recent_count.get();
        if count < MIN_COUNT {
            return 0.0;
        }
        let mean = self.recent_seconds.get() / count;
        let least = self.least_mean.get();
        if least <= 0.0 || mean < least {
            self.least_mean.set(mean);
            return 0.0;
        }
        if mean < SLOWED_RATIO * least {
            0.0
        } else {
            mean
        }
    }

    /// The mean gap in seconds, if it is at least [`SLOWED_RATIO`] times the minimum. 0: below that, or not
    /// known.
    #[inline] // each candidate of each decision reads it once
    pub(super) fn slowed_mean(&self) -> f64 {
        self.slowed_mean.get()
    }

    /// Forgets the minimum, which belongs to an earlier process.
    pub(super) fn forget(&self) {
        self.least_mean.set(0.0);
        self.slowed_mean.set(0.0);
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
    fn few_or_no_gaps_are_no_mean() {
        let gaps = TokenGaps::default();
        assert!(after(&gaps, &[0.02, 0.1]) > 0.0);
        gaps.on_report(None, 4.0);
        assert!(
            gaps.slowed_mean() <= 0.0,
            "the engine reports no gaps any more"
        );
        assert!(after(&gaps, &[0.1, 0.1]) > 0.0);
        gaps.on_report(
            Some(TokenGapSum {
                seconds: 1_020.0,
                count: 1_200.0,
            }),
            9.0,
        );
        assert!(gaps.slowed_mean() <= 0.0, "no gap for six seconds");
        gaps.on_report(Some(TokenGapSum::default()), 10.0);
        assert!(gaps.slowed_mean() <= 0.0, "the engine started again");
    }
}
