//! What comes bit by bit is handled together. Whoever gives something goes on at once; the first
//! thing wakes a thread, which waits a moment for more, or until there is much, and then takes all of
//! it. A thread that were woken for each would cost several times what most of them cost.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A place where things wait for each other.
#[derive(Debug)]
pub struct Gatherer<T> {
    waiting: Mutex<Waiting<T>>,
    /// The first thing has come, or much, or it is over.
    told: Condvar,
    together: Duration,
    room: usize,
}

/// Of the room, the part that is much: it is not waited for more.
const MUCH: usize = 32;

#[derive(Debug)]
struct Waiting<T> {
    things: Vec<T>,
    size: usize,
    is_over: bool,
}

impl<T> Gatherer<T> {
    /// The first thing waits for others for as long as `together`, or until their sizes come to a
    /// thirty-second of `room`. They come to `room` at most.
    pub const fn new(together: Duration, room: usize) -> Self {
        let waiting = Waiting { things: Vec::new(), size: 0, is_over: false };
        Self { waiting: Mutex::new(waiting), told: Condvar::new(), together, room }
    }

    /// Gives a thing of this size. It comes back if there is no room for it, or if it is over.
    pub fn give(&self, thing: T, size: usize) -> Result<(), T> {
        let mut waiting = self.waiting();
        if waiting.is_over || waiting.size + size > self.room {
            return Err(thing);
        }
        waiting.things.push(thing);
        let was_much = self.is_much(&waiting);
        waiting.size += size;
        let is_news = waiting.things.len() == 1 || was_much != self.is_much(&waiting);
        drop(waiting);
        if is_news {
            self.told.notify_one();
        }
        Ok(())
    }

    /// Waits until there is something to take. Whether more may come after it.
    pub fn wait(&self) -> bool {
        let is_quiet = |waiting: &mut Waiting<T>| waiting.things.is_empty() && !waiting.is_over;
        let waiting = self.told.wait_while(self.waiting(), is_quiet);
        let waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let is_little = |it: &mut Waiting<T>| !it.is_over && !self.is_much(it);
        let more = self.told.wait_timeout_while(waiting, self.together, is_little);
        !more.unwrap_or_else(PoisonError::into_inner).0.is_over
    }

    fn is_much(&self, waiting: &Waiting<T>) -> bool {
        waiting.size >= (self.room / MUCH).max(1)
    }

    /// Takes all that waits, in the order in which it came.
    pub fn take(&self) -> Vec<T> {
        let mut waiting = self.waiting();
        waiting.size = 0;
        std::mem::take(&mut waiting.things)
    }

    /// Nothing is taken in any more, and nobody waits.
    pub fn end(&self) {
        self.waiting().is_over = true;
        self.told.notify_all();
    }

    /// Whether [`Gatherer::end`] was called.
    pub fn is_over(&self) -> bool {
        self.waiting().is_over
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    const LONG: Duration = Duration::from_hours(1);

    #[test]
    fn what_comes_waits_together_and_is_taken_in_its_order() {
        let gatherer = Gatherer::new(Duration::ZERO, 10);
        (0..10).for_each(|number| gatherer.give(number, 1).unwrap());
        assert!(gatherer.wait());
        assert_eq!(gatherer.take(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(gatherer.take().is_empty());
    }

    #[test]
    fn what_finds_no_room_comes_back_and_what_was_taken_makes_room() {
        let gatherer = Gatherer::new(Duration::ZERO, 10);
        assert_eq!(gatherer.give("large", 9), Ok(()));
        assert_eq!(gatherer.give("small", 2), Err("small"));
        assert_eq!(gatherer.take(), ["large"]);
        assert_eq!(gatherer.give("small", 2), Ok(()));
    }

    #[test]
    fn much_is_not_waited_for_more() {
        let gatherer = Arc::new(Gatherer::new(LONG, 10 * MUCH));
        let thread = {
            let gatherer = gatherer.clone();
            thread::spawn(move || (gatherer.wait(), gatherer.take().len()))
        };
        (0..10).for_each(|number| gatherer.give(number, 1).unwrap());
        assert_eq!(thread.join().unwrap(), (true, 10));
    }

    #[test]
    fn the_end_lets_all_be_taken_and_nothing_more_in() {
        let gatherer = Arc::new(Gatherer::new(LONG, 10 * MUCH));
        gatherer.give("before", 1).unwrap();
        let thread = {
            let gatherer = gatherer.clone();
            thread::spawn(move || (gatherer.wait(), gatherer.take()))
        };
        gatherer.end();
        assert_eq!(thread.join().unwrap(), (false, vec!["before"]));
        assert_eq!(gatherer.give("after", 1), Err("after"));
        assert!(gatherer.is_over());
    }

    #[test]
    fn each_thing_of_many_threads_is_taken_once() {
        let gatherer = Gatherer::new(Duration::from_millis(1), 10_000);
        let mut taken = Vec::new();
        thread::scope(|scope| {
            for first in [0, 1_000, 2_000, 3_000] {
                let gatherer = &gatherer;
                let all = move || (first..first + 1_000).all(|it| gatherer.give(it, 1).is_ok());
                scope.spawn(move || assert!(all()));
            }
            while taken.len() < 4_000 {
                assert!(gatherer.wait());
                taken.extend(gatherer.take());
            }
        });
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..4_000));
    }
}
