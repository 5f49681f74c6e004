//! Replicas that went away. The series of the last ones stay, so that what they came to can still
//! be scraped; those of the others end, so that a fleet that changes all the time does not grow
//! series for ever.

use std::collections::VecDeque;

/// The replicas that went away last.
#[derive(Debug, Default)]
pub(super) struct Parted {
    names: VecDeque<String>,
    has_forgotten: bool,
}

/// Replicas that went away and have their series.
const MOST: usize = 8;

impl Parted {
    /// The fleet was `before`, and is `now`.
    pub(super) fn on_change(&mut self, before: &[String], now: &[String]) {
        self.names.retain(|name| !now.contains(name));
        self.names.extend(before.iter().filter(|name| !now.contains(name)).cloned());
        while self.names.len() > MOST {
            self.names.pop_front();
            self.has_forgotten = true;
        }
    }

    /// Whether there may be series of replicas that are neither here nor in the fleet: those that
    /// went away longest ago, of which a request may still end.
    pub(super) fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }

    /// Whether a replica went away lately.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|other| other == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(range: std::ops::Range<usize>) -> Vec<String> {
        range.map(|number| format!("vllm-{number}")).collect()
    }

    #[test]
    fn the_last_that_went_away_are_known_and_one_that_came_back_is_not_among_them() {
        let mut parted = Parted::default();
        parted.on_change(&names(0..8), &names(4..8));
        assert!(parted.has("vllm-0") && parted.has("vllm-3") && !parted.has("vllm-4"));
        parted.on_change(&names(4..8), &names(0..1));
        assert!(!parted.has("vllm-0") && parted.has("vllm-7") && !parted.has_forgotten());
        parted.on_change(&names(20..29), &[]);
        assert_eq!(names(0..40).iter().filter(|name| parted.has(name)).count(), MOST);
        assert!(!parted.has("vllm-20") && parted.has("vllm-28") && parted.has_forgotten());
    }
}
