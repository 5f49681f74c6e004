//! The maximum number of requests that an engine has answered at once, from the requests of this gateway alone.
//! This number reveals even a queue in the engine that is shorter than the interval between two load reports.
//!
//! While requests wait for a slot, a waiting request replaces each request that ends, so the number of answered
//! requests returns to its maximum again and again. While the load grows, the maximum grows too, and does not
//! count yet.

use super::super::reservation::LocalLoad;
use std::sync::atomic::{AtomicU32, Ordering};

/// The maximum number of requests that the engine has answered at once since its start, and how often the
/// engine reached it again.
#[derive(Debug, Default)]
pub(super) struct MaxAnswering {
    max: AtomicU32,
    confirmations: AtomicU32,
}

/// Number of times that the engine must reach the maximum again before the maximum is used.
const MIN_CONFIRMATIONS: u32 = 3;

impl MaxAnswering {
    /// Records the first output of a stream. `load`: the load, in which this stream already counts as one with
    /// output.
    pub(super) fn on_first_output(&self, load: &LocalLoad) {
        let answering = load.answering();
        let max = self.max.load(Ordering::Relaxed);
        // A race between two responses loses one confirmation.
        if answering > max {
            self.max.store(answering, Ordering::Relaxed);
            self.confirmations.store(0, Ordering::Relaxed);
        } else if answering == max {
            self.confirmations.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the maximum number of requests answered at once. 0: the engine has not reached it
    /// again [`MIN_CONFIRMATIONS`] times.
    pub(super) fn confirmed(&self) -> u32 {
        let is_confirmed = self.confirmations.load(Ordering::Relaxed) >= MIN_CONFIRMATIONS;
        if is_confirmed {
            self.max.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// Forgets the maximum, because the engine has restarted, perhaps with other settings.
    pub(super) fn forget(&self) {
        self.max.store(0, Ordering::Relaxed);
        self.confirmations.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the confirmed maximum after first outputs at these numbers of answered requests.
    fn confirmed_after(answering: &[u32]) -> u32 {
        let max = MaxAnswering::default();
        for in_flight in answering {
            max.on_first_output(&LocalLoad {
                in_flight: *in_flight,
                ..LocalLoad::default()
            });
        }
        max.confirmed()
    }

    #[test]
    fn the_maximum_counts_after_three_repetitions() {
        for (answering, expected) in [
            (&[14, 15, 16, 16, 16, 15, 16][..], 16),
            (&[14, 15, 16, 16, 16], 0),
            (&[15, 16, 16, 16, 16, 17], 0),
        ] {
            assert_eq!(confirmed_after(answering), expected, "{answering:?}");
        }
    }
}
