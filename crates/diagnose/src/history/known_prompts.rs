//! Remembers the prompts of the last requests, to tell how much of a new prompt an earlier prompt contained.
//! The caches of the backends do not matter, so a continued conversation is recognised even after its eviction.

use hashbrown::HashSet;
use std::time::{Duration, Instant};

/// The hash of the last block of each prompt of the last 30 to 60 seconds. Clients choose the prompts, so the
/// sets use hashing with a random seed, which is the default of `hashbrown`.
#[derive(Debug, Default)]
pub(crate) struct KnownPrompts {
    /// The hash of the last block of each prompt. The hash of a block covers all blocks before it.
    current: HashSet<u64>,
    previous: HashSet<u64>,
    /// The time since which `current` collects prompts. `None`: no prompt yet.
    since: Option<Instant>,
}

/// Time after which the current set becomes the previous one. Agents continue a conversation sooner. If people
/// continue it later, an eviction is no fault.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// Maximum number of prompts in the current set. A full set becomes the previous one earlier.
const MAX_PROMPTS: usize = 8_192;
/// Number of blocks at the end of a prompt that are compared with the ends of earlier prompts.
const SEARCHED_BLOCKS: usize = 64;

impl KnownPrompts {
    /// Adds a prompt with these blocks at `now`. Returns the number of leading blocks that form a whole earlier
    /// prompt. 0: the prompt continues no earlier prompt.
    pub(crate) fn add(&mut self, blocks: &[u64], now: Instant) -> usize {
        let Some(end) = blocks.last() else {
            return 0;
        };
        let age = now.saturating_duration_since(*self.since.get_or_insert(now));
        if age >= KEPT_FOR || self.current.len() >= MAX_PROMPTS {
            self.previous = std::mem::take(&mut self.current);
            self.since = Some(now);
        }
        let first = blocks.len().saturating_sub(SEARCHED_BLOCKS);
        let is_end = |hash: &u64| self.current.contains(hash) || self.previous.contains(hash);
        let known = blocks[first..].iter().rposition(is_end);
        self.current.insert(*end);
        known.map_or(0, |position| first + position + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn the_longest_earlier_prompt_is_found() {
        let mut known = KnownPrompts::default();
        let now = clock::epoch();
        assert_eq!(known.add(&[], now), 0);
        assert_eq!(known.add(&[1, 2, 3], now), 0);
        assert_eq!(known.add(&[1, 2, 9], now), 0, "it extends no whole prompt");
        assert_eq!(known.add(&[1, 2, 3, 4, 5], now), 3);
        assert_eq!(known.add(&[1, 2, 3, 4, 5, 6], now), 5);
        assert_eq!(known.add(&[1, 2, 3], now), 3);
    }

    #[test]
    fn prompts_are_forgotten_after_a_minute() {
        let mut known = KnownPrompts::default();
        let start = clock::epoch();
        known.add(&[1], start);
        assert_eq!(known.add(&[1, 2], start + KEPT_FOR), 1);
        assert_eq!(known.add(&[1, 3], start + 2 * KEPT_FOR), 0);
    }

    #[test]
    fn the_number_of_prompts_is_bounded() {
        let mut known = KnownPrompts::default();
        for hash in 0..100_000 {
            known.add(&[hash], clock::epoch());
        }
        assert!(known.current.len() + known.previous.len() <= 2 * MAX_PROMPTS);
    }
}
