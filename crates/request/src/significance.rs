//! Statistics of counted requests.

/// Number of standard deviations between a measured share and its lower confidence bound. In one of 40
/// measurements the true share is below the bound.
const DEVIATIONS: f64 = 1.96;

/// Whether `part` of `total` is significantly more than `share`: the lower confidence bound of the measured
/// share is above `share` (score interval of E. B. Wilson, 1927).
pub fn is_share_above(part: u64, total: u64, share: f64) -> bool {
    if total == 0 {
        return false;
    }
    let count = total as f64;
    let square = DEVIATIONS * DEVIATIONS;
    let observed = part as f64 / count;
    let middle = observed + square / (2.0 * count);
    let variance = observed * (1.0 - observed).max(0.0) / count + square / (4.0 * count * count);
    (middle - DEVIATIONS * variance.sqrt()) / (1.0 + square / count) > share
}

/// The spread of measured times in seconds.
#[derive(Debug, Clone, Copy)]
pub struct TimeSpread {
    /// Mean time in seconds.
    pub mean: f64,
    /// Standard deviation in seconds.
    pub deviation: f64,
}

/// Times are equal if their standard deviation is at most this share of their mean.
const EQUAL_DEVIATION: f64 = 0.1;

impl TimeSpread {
    /// The spread of times with this mean, whose squares have the mean `mean_square`.
    pub fn of_means(mean: f64, mean_square: f64) -> Self {
        let variance = mean_square - mean * mean;
        Self {
            mean,
            deviation: variance.max(0.0).sqrt(),
        }
    }

    /// Whether the times are so equal that one timeout causes them.
    pub fn is_equal(&self) -> bool {
        self.deviation <= EQUAL_DEVIATION * self.mean
    }
}
