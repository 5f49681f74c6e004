//! One word per backend that orders the backends of a large pool by predicted TTFT.
//!
//! All words are in one array, so comparing dozens of them costs about as much as building one [`Candidate`].
//!
//! ```text
//! upper 16 bits   predicted seconds to the first output of a reference prompt, as by kv_aware
//! lower 48 bits   microseconds from the epoch to the last request sent to the backend
//! ```
//!
//! A word is updated when its backend gets a request, produces output, ends a response or is scraped. A word is
//! only a hint and may be out of date: the policy decides by the full [`Candidate`].

use crate::{Candidate, PrefillCost, kv_aware};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Predicted TTFT and idle time of one backend. The backend with the shortest predicted TTFT has the lowest
/// hint. Among equal predictions, the backend that has been idle longest has the lowest hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoadHint(u64);

/// The hints of the backends of a pool, by position.
#[derive(Debug)]
pub(super) struct LoadHintTable(Box<[AtomicU64]>);

/// Number of backend positions in the table. A backend at a greater position has the hint of an
/// idle backend.
const MAX_POSITIONS: usize = 1 << 16;
/// Number of bits of a hint that hold the time of the last request.
const LAST_SENT_BITS: u32 = 48;
/// Number of tokens of the reference prompt for hints. It has no cached tokens and no output, because both
/// depend on the request.
const HINT_PROMPT_TOKENS: f64 = 1_000.0;
/// Ratio of the prefill cost of a backend without observed output to the default. The low value lets such a
/// backend be sampled before other idle backends, but not while it has a long backlog.
const UNCALIBRATED_RATIO: f64 = 0.1;
/// Seconds added to each prediction. The precision of the 16-bit value is relative. With this addend, short
/// predictions are compared in steps of about a millisecond.
const ADDED_SECONDS: f64 = 0.1;

impl LoadHint {
    /// Hint of a backend that must not get requests.
    pub(super) const UNAVAILABLE: Self = Self(u64::MAX);

    /// The hint of a backend with this estimate. `last_sent`: the time from the epoch to the last request.
    pub(super) fn new(candidate: &Candidate, last_sent: Duration) -> Self {
        let reference = Candidate {
            prompt: HINT_PROMPT_TOKENS,
            cached: 0.0,
            output: 0.0,
            prefill: damped_prefill_cost(candidate),
            ..*candidate
        };
        let settings = kv_aware::KvAwareSettings::default();
        let seconds = ADDED_SECONDS
            + kv_aware::terms(
                &settings,
                &reference,
                false,
                &kv_aware::FleetLoad::default(),
            )
            .cost();
        // The upper half of a positive f32 has the order of the number, in steps of less than 1 %. The upper
        // half of NaN exceeds that of any number.
        let cost_bits = u64::from((seconds as f32).to_bits() >> 16);
        let micros = u64::try_from(last_sent.as_micros()).unwrap_or(u64::MAX);
        Self(cost_bits << LAST_SENT_BITS | micros & ((1 << LAST_SENT_BITS) - 1))
    }
}

/// The prefill cost for hints: the geometric mean of the learned and the default cost.
///
/// Learned costs have random errors. Without damping, the backend with the most favourable error among dozens
/// would have the lowest hint again and again, whatever the request.
fn damped_prefill_cost(candidate: &Candidate) -> PrefillCost {
    if candidate.is_calibrated {
        PrefillCost::at_ratio(candidate.prefill.ratio().sqrt())
    } else {
        PrefillCost::at_ratio(UNCALIBRATED_RATIO)
    }
}

impl LoadHintTable {
    /// A table in which all backends seem idle.
    pub(super) fn new() -> Self {
        Self(
            std::iter::repeat_with(AtomicU64::default)
                .take(MAX_POSITIONS)
                .collect(),
        )
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    pub(super) fn at(&self, position: usize) -> LoadHint {
        LoadHint(
            self.0
                .get(position)
                .map_or(0, |word| word.load(Ordering::Relaxed)),
        )
    }

    /// Sets the hint of the backend at a position. Positions outside the table are ignored.
    pub(super) fn set(&self, position: usize, hint: LoadHint) {
        if let Some(word) = self.0.get(position) {
            word.store(hint.0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::idle_candidate;

    const SENT: Duration = Duration::from_secs(5);

    fn hint_for(candidate: &Candidate) -> LoadHint {
        LoadHint::new(candidate, SENT)
    }

    #[test]
    fn a_longer_ttft_gives_a_greater_hint() {
        let backlogs = [0.0, 500.0, 5_000.0, 1e6, 1e300, f64::NAN];
        let hints = backlogs.map(|backlog| {
            hint_for(&Candidate {
                backlog,
                ..idle_candidate()
            })
        });
        assert!(hints.is_sorted_by(|a, b| a < b), "{hints:?}");
        assert!(hints.iter().all(|hint| *hint < LoadHint::UNAVAILABLE));
        let full = hint_for(&Candidate {
            kv_usage: Some(0.97),
            ..idle_candidate()
        });
        assert!(hint_for(&idle_candidate()) < full);
    }

    #[test]
    fn the_longest_idle_backend_has_the_least_hint() {
        let slower = Candidate {
            backlog: 0.01,
            ..idle_candidate()
        };
        assert!(LoadHint::new(&slower, SENT) < LoadHint::new(&idle_candidate(), 2 * SENT));
        assert!(LoadHint::new(&idle_candidate(), SENT) < LoadHint::new(&slower, 2 * SENT));
    }

    #[test]
    fn a_cached_prefix_does_not_change_the_hint() {
        assert_eq!(
            hint_for(&Candidate {
                cached: 900.0,
                output: 5.0,
                ..idle_candidate()
            }),
            hint_for(&idle_candidate())
        );
    }

    #[test]
    fn an_unobserved_backend_has_the_least_hint() {
        let new = Candidate {
            is_calibrated: false,
            ..idle_candidate()
        };
        assert!(hint_for(&new) < hint_for(&idle_candidate()));
        assert!(
            hint_for(&Candidate {
                backlog: 1e6,
                ..new
            }) > hint_for(&idle_candidate())
        );
    }

    #[test]
    fn positions_outside_the_table_have_idle_hints() {
        let table = LoadHintTable::new();
        table.set(3, LoadHint::UNAVAILABLE);
        table.set(MAX_POSITIONS, LoadHint::UNAVAILABLE);
        assert_eq!(table.at(3), LoadHint::UNAVAILABLE);
        let outside = [2, MAX_POSITIONS, usize::MAX].map(|position| table.at(position));
        assert!(outside == [LoadHint(0); 3]);
    }
}
