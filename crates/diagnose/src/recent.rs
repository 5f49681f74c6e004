//! Recently observed values with their times, and counts that have grown recently.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Values with the times at which they were observed, the oldest first.
#[derive(Debug)]
pub(crate) struct Recent<T>(VecDeque<(Instant, T)>);

impl<T> Recent<T> {
    /// Forgets the values that are at least as old as `span`.
    pub(crate) fn forget(&mut self, span: Duration, now: Instant) {
        let is_old = |(at, _): &mut (Instant, T)| now.saturating_duration_since(*at) >= span;
        while self.0.pop_front_if(is_old).is_some() {}
    }

    pub(crate) fn add(&mut self, value: T, now: Instant) {
        self.0.push_back((now, value));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn times(&self) -> impl DoubleEndedIterator<Item = Instant> {
        self.0.iter().map(|(at, _)| *at)
    }

    /// The values that are younger than `span`.
    pub(crate) fn within(&self, span: Duration, now: Instant) -> impl Iterator<Item = &T> {
        let is_in = move |at: Instant| now.saturating_duration_since(at) < span;
        let recent = self.0.iter().filter(move |(at, _)| is_in(*at));
        recent.map(|(_, value)| value)
    }
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

/// The time at which a count of the gateway last grew.
#[derive(Debug, Default)]
pub(crate) struct CountGrowth {
    /// The count at the last evaluation. `None`: no evaluation yet.
    last: Option<u64>,
    /// Time of the last evaluation at which the count had grown. `None`: it has not grown.
    grown_at: Option<Instant>,
}

impl CountGrowth {
    /// Takes the count at `now`. Returns whether the count has grown in the last `hold`.
    pub(crate) fn has_grown(&mut self, count: u64, hold: Duration, now: Instant) -> bool {
        let before = self.last.replace(count);
        if before.is_some_and(|before| count > before) {
            self.grown_at = Some(now);
        }
        let age = self.grown_at.map(|at| now.saturating_duration_since(at));
        age.is_some_and(|age| age < hold)
    }
}
