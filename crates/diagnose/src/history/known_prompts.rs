//! The prompts of the last requests, to know how much of a prompt an earlier one had, whatever the caches of the
//! backends hold now. With this, a conversation that goes on is known although it was evicted.

use hashbrown::HashSet;
use std::time::{Duration, Instant};

/// The ends of the prompts of the last 30 to 60 seconds. Clients choose the prompts, so the sets need hashes with a random
/// seed, as those of `hashbrown` have.
#[derive(Debug, Default)]
pub(crate) struct KnownPrompts {
    /// The last block of each prompt. A hash covers all blocks before its own.
    current: HashSet<u64>,
    previous: HashSet<u64>,
    /// The time from which `current` counts. `None`: there was no prompt.
    since: Option<Instant>,
}

/// Time after which the prompts so far are the previous ones. Agents return sooner. People who return later
/// cannot expect a cache to keep their conversation.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// Maximum number of prompts of the current time. Further ones shorten the time.
const MAX_PROMPTS: usize = 8_192;
/// Number of blocks of a prompt in which the end of an earlier prompt is searched.
const SEARCHED_BLOCKS: usize = 64;

impl KnownPrompts {
    /// Adds a prompt with these blocks at `now`. Returns the number of its leading blocks that were all blocks of an
    /// earlier prompt. 0: it extends none.
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
