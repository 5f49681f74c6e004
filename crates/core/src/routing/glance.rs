//! What the replicas of a large fleet show at a glance: a word for each, which is less the sooner
//! the replica would answer. The words lie close together, so that dozens are compared for what it
//! costs to look at one replica whole.
//!
//! ```text
//! 16 bits: seconds to the first output of a prompt that is supposed, as kv_aware predicts them
//! 48 bits: microseconds from the epoch to the last request that the replica was sent
//! ```
//!
//! A word is written when something happens at its replica: it gets a request, gives an output or
//! an answer, or is asked how it is. So it is a hint, and may be wrong in any way: who follows it
//! looks at the replica whole.

use super::{Candidate, Prefill, kv_aware};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How one replica stands. Of several the least is the one to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Glance(u64);

/// How all of them stand, by their positions.
#[derive(Debug)]
pub(super) struct Glances(Box<[AtomicU64]>);

/// Positions that there are. A replica beyond them shows nothing to do.
const MOST: usize = 1 << 16;
/// Bits of a word for the time of the last request.
const SENT_BITS: u32 = 48;
/// Tokens of the prompt that is supposed. None of them is cached, and there is no answer: those
/// depend on the request.
const SUPPOSED: f64 = 1_000.0;
/// Seconds for a token that are hoped of a replica that has given no output yet: it is looked at
/// before others that are idle, but not whatever it has to do.
const HOPED: f64 = 1e-5;
/// Seconds that are added: what takes almost no time differs by a millisecond, not by a share.
const FLOOR: f64 = 0.1;

// === impl Glance ===

impl Glance {
    /// It is to get nothing.
    pub(super) const SHUT: Self = Self(u64::MAX);

    /// Of a replica that is believed to be this, and was sent its last request at this time from
    /// the epoch.
    pub(super) fn new(candidate: &Candidate, sent: Duration) -> Self {
        let supposed = Candidate {
            prompt: SUPPOSED,
            cached: 0.0,
            output: 0.0,
            prefill: half_believed(candidate),
            ..*candidate
        };
        let seconds = FLOOR + kv_aware::cost(&kv_aware::Settings::default(), &supposed, false);
        // The upper half of such a number grows as it does, in steps of less than a hundredth; of
        // one that is no number it is greater than any.
        let step = u64::from((seconds as f32).to_bits() >> 16);
        let sent = u64::try_from(sent.as_micros()).unwrap_or(u64::MAX);
        Self(step << SENT_BITS | sent & ((1 << SENT_BITS) - 1))
    }
}

/// What was learned of a replica has luck in it, and of dozens that are compared the luckiest would
/// seem best again and again, whatever the request. So half of the price of a token is believed, on
/// the logarithmic scale, and nothing of the base.
fn half_believed(candidate: &Candidate) -> Prefill {
    let (usual, learned) = (Prefill::default(), candidate.prefill.per_token);
    let half = (learned * usual.per_token).sqrt();
    Prefill { per_token: if candidate.is_tried { half } else { HOPED }, ..usual }
}

// === impl Glances ===

impl Glances {
    /// Nobody has shown anything.
    pub(super) fn new() -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(MOST).collect())
    }

    /// Their size in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// How the replica at a position stands.
    pub(super) fn at(&self, position: usize) -> Glance {
        Glance(self.0.get(position).map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    /// The replica at a position stands like this from now on.
    pub(super) fn set(&self, position: usize, glance: Glance) {
        if let Some(word) = self.0.get(position) {
            word.store(glance.0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::replica;
    use super::*;

    const SENT: Duration = Duration::from_secs(5);

    fn of(candidate: &Candidate) -> Glance {
        Glance::new(candidate, SENT)
    }

    #[test]
    fn the_longer_a_prompt_would_wait_the_more_a_replica_shows() {
        let backlogs = [0.0, 500.0, 5_000.0, 1e6, 1e300, f64::NAN];
        let shown = backlogs.map(|backlog| of(&Candidate { backlog, ..replica() }));
        assert!(shown.is_sorted_by(|a, b| a < b), "{shown:?}");
        assert!(shown.iter().all(|glance| *glance < Glance::SHUT));
        let full = of(&Candidate { kv_usage: Some(0.97), ..replica() });
        assert!(of(&replica()) < full);
    }

    #[test]
    fn of_those_that_are_about_as_fast_the_one_that_has_rested_longest_shows_less() {
        let slower = Candidate { backlog: 0.01, ..replica() };
        assert!(Glance::new(&slower, SENT) < Glance::new(&replica(), 2 * SENT));
        assert!(Glance::new(&replica(), SENT) < Glance::new(&slower, 2 * SENT));
    }

    #[test]
    fn what_is_cached_for_one_prompt_is_not_shown_to_others() {
        assert_eq!(of(&Candidate { cached: 900.0, output: 5.0, ..replica() }), of(&replica()));
    }

    #[test]
    fn a_replica_that_has_not_answered_is_looked_at_first_until_it_has_much_to_do() {
        let new = Candidate { is_tried: false, ..replica() };
        assert!(of(&new) < of(&replica()));
        assert!(of(&Candidate { backlog: 1e6, ..new }) > of(&replica()));
    }

    #[test]
    fn a_position_that_is_not_kept_shows_nothing_to_do() {
        let glances = Glances::new();
        glances.set(3, Glance::SHUT);
        glances.set(MOST, Glance::SHUT);
        assert_eq!(glances.at(3), Glance::SHUT);
        assert!([2, MOST, usize::MAX].map(|position| glances.at(position)) == [Glance(0); 3]);
    }
}
