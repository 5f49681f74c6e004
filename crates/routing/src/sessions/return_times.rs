//! How soon sessions return after the end of a turn, learned from the turns so far.
//!
//! ```text
//! h(b)      share of the sessions that return in interval b, of those that have not returned before it
//! P(t)      = 1 − Π (1 − h(b)) over the intervals b ≥ t: probability that a session that is idle for t returns
//! F(t)      = 1 − Π (1 − h(b)) over the intervals b ≤ t: probability that a session returns within t
//! probable  the longest t with P(t) ≥ 0.3
//! most      the shortest t with F(t) ≥ 0.85 × F(32 s)
//! ```
//!
//! This is the estimator of Kaplan and Meier (1958). A session that has not returned is a censored observation,
//! so sessions need no signal of their end.

use std::time::Duration;

/// The times after which sessions return.
#[derive(Debug)]
pub(super) struct ReturnTimes {
    intervals: Vec<Interval>,
}

#[derive(Debug)]
struct Interval {
    until: Duration,
    /// Sessions that had not returned before the interval.
    idle: f64,
    returned: f64,
}

/// End of the first interval. Each further one is twice as long.
const FIRST: Duration = Duration::from_millis(250);
/// Number of intervals. The last one ends after 32 s.
const INTERVALS: u32 = 8;
/// Number of sessions that are assumed in each interval before any is observed. Agents return soon or not at all.
const ASSUMED_IDLE: f64 = 2.0;
/// Number of assumed returns in the intervals up to 2 s, and in later ones.
const ASSUMED_EARLY: f64 = 1.0;
const ASSUMED_LATE: f64 = 0.2;
/// Least probability of a return for which a context counts.
const MIN_PROBABILITY: f64 = 0.3;
/// Share of the returns until [`ReturnTimes::most_returns`].
const MOST_RETURNS: f64 = 0.85;
/// If an interval has more sessions than this, its counts are halved, so that new sessions weigh more.
const MAX_IDLE: f64 = 200.0;

impl Default for ReturnTimes {
    fn default() -> Self {
        let interval = |index| {
            let until = FIRST * 2_u32.pow(index);
            let is_early = until <= Duration::from_secs(2);
            let returned = if is_early {
                ASSUMED_EARLY
            } else {
                ASSUMED_LATE
            };
            Interval {
                until,
                idle: ASSUMED_IDLE,
                returned,
            }
        };
        Self {
            intervals: (0..INTERVALS).map(interval).collect(),
        }
    }
}

impl ReturnTimes {
    /// The time after which a session counts as ended.
    pub(super) const LONGEST: Duration = Duration::from_millis(250 << (INTERVALS - 1));

    /// The interval of a time since the end of a turn: the number of intervals before it.
    pub(super) fn interval_of(&self, idle: Duration) -> usize {
        self.intervals
            .partition_point(|interval| interval.until <= idle)
    }

    pub(super) fn stayed_away(&mut self, interval: usize) {
        self.count(interval, 0.0);
    }

    pub(super) fn returned(&mut self, interval: usize) {
        self.count(interval, 1.0);
    }

    /// The time for which the context of an idle session is worth its place in a KV cache: as long as the session
    /// returns with a probability of at least [`MIN_PROBABILITY`].
    pub(super) fn probable_return(&self) -> Duration {
        let mut stays_away = 1.0;
        for interval in self.intervals.iter().rev() {
            stays_away *= interval.stays_away();
            if 1.0 - stays_away >= MIN_PROBABILITY {
                return interval.until;
            }
        }
        Duration::ZERO
    }

    /// The time within which most sessions return that do.
    pub(super) fn most_returns(&self) -> Duration {
        let intervals = self.intervals.iter();
        let ever_away: f64 = intervals.map(Interval::stays_away).product();
        let most = MOST_RETURNS * (1.0 - ever_away);
        let mut stays_away = 1.0;
        for interval in &self.intervals {
            stays_away *= interval.stays_away();
            if 1.0 - stays_away >= most {
                return interval.until;
            }
        }
        Self::LONGEST
    }

    fn count(&mut self, interval: usize, returned: f64) {
        let Some(interval) = self.intervals.get_mut(interval) else {
            return;
        };
        interval.idle += 1.0;
        interval.returned += returned;
        if interval.idle > MAX_IDLE {
            interval.idle /= 2.0;
            interval.returned /= 2.0;
        }
    }
}

impl Interval {
    /// The probability that a session that is idle at its begin does not return in it.
    fn stays_away(&self) -> f64 {
        1.0 - self.returned / self.idle
    }
}
