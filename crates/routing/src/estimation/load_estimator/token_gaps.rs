//! The mean time between two tokens of a sequence in the engine during the last second, from the sums in its
//! reports.

use super::super::load_report::TokenGapSum;
use tokenweir_protocol::atomic::AtomicF64;

/// The recent gaps between tokens. One task stores the reports, so no update is lost.
#[derive(Debug, Default)]
pub(super) struct TokenGaps {
    /// Time of the last report in seconds. 0: no report yet.
    reported_at: AtomicF64,
    /// The sums of the last report.
    total_seconds: AtomicF64,
    total_count: AtomicF64,
    /// The gaps since then, whose weight falls to 37 % in [`TIME_CONSTANT_SECONDS`].
    recent_seconds: AtomicF64,
    recent_count: AtomicF64,
    /// The least mean since the start of the engine. 0: not known.
    least_mean: AtomicF64,
    /// The present value of [`TokenGaps::slowed_mean`].
    slowed_mean: AtomicF64,
}

/// Age at which a gap counts for 37 %: long enough for about ten scrapes, and shorter than a response.
const TIME_CONSTANT_SECONDS: f64 = 1.0;
/// Number of recent gaps below which their mean is not known.
const MIN_COUNT: f64 = 20.0;
/// Ratio of the mean gap to the least one up to which the engine does not count as slowed down. An engine that
/// is slow with few sequences is not made faster by fewer requests.
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

    /// The mean gap in seconds, if it is at least [`SLOWED_RATIO`] times the least one. 0: it is not, or not
    /// known.
    #[inline] // each candidate of each decision reads it once
    pub(super) fn slowed_mean(&self) -> f64 {
        self.slowed_mean.get()
    }

    /// Forgets the least mean, which another process had.
    pub(super) fn forget(&self) {
        self.least_mean.set(0.0);
        self.slowed_mean.set(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports ten tokens of each of ten sequences, and so 100 gaps, in each of these seconds. Returns the last
    /// mean.
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
