//! The prompts whose streams a backend has just cut. If a client repeats such a request, prefix affinity would
//! choose the same backend again.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::mutex::lock;

/// The prompts of the streams that one backend cut in the last minute.
#[derive(Debug, Default)]
pub struct RecentCuts {
    /// Whether `cuts` may have an entry. Routing reads this flag without a lock.
    has_any: AtomicFlag,
    /// Boxed, so that the fields that routing reads of each backend stay adjacent.
    cuts: Box<Mutex<Cuts>>,
}

#[derive(Debug, Default)]
struct Cuts {
    /// When the backend last cut a stream, by prompt hash.
    at: HashMap<u64, Instant>,
    /// When the backend last cut any stream.
    last: Option<Instant>,
}

/// Time for which an equal request avoids the backend.
const RETENTION: Duration = Duration::from_mins(1);
/// Maximum number of stored prompts.
const MAX_PROMPTS: usize = 1_024;

impl RecentCuts {
    /// Records that the backend cut a stream. `prompt`: the hash of its prompt. 0: not known.
    pub fn add(&self, prompt: u64, now: Instant) {
        if prompt == 0 {
            return;
        }
        let mut cuts = lock(&self.cuts);
        if cuts.at.len() >= MAX_PROMPTS {
            cuts.at.retain(|_, at| is_recent(*at, now));
        }
        if cuts.at.len() < MAX_PROMPTS {
            cuts.at.insert(prompt, now);
            cuts.last = Some(now);
            self.has_any.set(true);
        }
    }

    /// Whether the backend cut a stream with this prompt in the last minute.
    pub fn has(&self, prompt: u64, now: Instant) -> bool {
        if !self.has_any.get() {
            return false;
        }
        let mut cuts = lock(&self.cuts);
        if cuts.last.is_none_or(|last| !is_recent(last, now)) {
            *cuts = Cuts::default();
            self.has_any.set(false);
        }
        cuts.at.get(&prompt).is_some_and(|at| is_recent(*at, now))
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < RETENTION
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn a_cut_prompt_is_known_for_a_minute() {
        let cuts = RecentCuts::default();
        let now = clock::epoch();
        assert!(!cuts.has(1, now));
        cuts.add(1, now);
        cuts.add(0, now);
        assert!(cuts.has(1, now) && !cuts.has(2, now) && !cuts.has(0, now));
        assert!(cuts.has(1, now + RETENTION / 2));
        assert!(!cuts.has(1, now + RETENTION));
        assert!(!cuts.has_any.get() && cuts.cuts.lock().unwrap().at.is_empty());
    }

    #[test]
    fn the_number_of_cut_prompts_is_bounded() {
        let cuts = RecentCuts::default();
        let now = clock::epoch();
        for prompt in 1..=2 * MAX_PROMPTS as u64 {
            cuts.add(prompt, now);
        }
        assert_eq!(cuts.cuts.lock().unwrap().at.len(), MAX_PROMPTS);
        cuts.add(9_999, now + RETENTION);
        assert!(cuts.has(9_999, now + RETENTION));
        assert_eq!(cuts.cuts.lock().unwrap().at.len(), 1);
    }
}
