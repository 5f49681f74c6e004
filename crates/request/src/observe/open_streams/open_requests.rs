//! The start times of the open requests, for the age of the oldest request.

use std::sync::Mutex;
use std::time::Instant;
use tokenweir_protocol::mutex::lock;

/// The start times of all open requests. The slot of a request is reused after its end, so memory is allocated
/// only when the number of open requests reaches a new maximum.
#[derive(Debug, Default)]
pub(super) struct OpenRequests(Mutex<Slots>);

#[derive(Debug, Default)]
struct Slots {
    started: Vec<Option<Instant>>,
    free: Vec<usize>,
}

impl OpenRequests {
    /// Adds a request. Returns the slot to pass to [`OpenRequests::remove`].
    pub(super) fn add(&self, started: Instant) -> usize {
        let mut slots = lock(&self.0);
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.started.push(None);
            slots.started.len() - 1
        });
        slots.started[slot] = Some(started);
        slot
    }

    pub(super) fn remove(&self, slot: usize) {
        let mut slots = lock(&self.0);
        slots.started[slot] = None;
        slots.free.push(slot);
    }

    /// The start of the oldest open request. `None`: no request is open.
    pub(super) fn oldest(&self) -> Option<Instant> {
        lock(&self.0).started.iter().flatten().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    #[test]
    fn oldest_requests_are_found_and_slots_are_reused() {
        let (requests, now) = (OpenRequests::default(), clock::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(requests.oldest(), None);
        let [second, first, third] = [2, 1, 3].map(|start| requests.add(at(start)));
        assert_eq!(requests.oldest(), Some(at(1)));
        requests.remove(first);
        assert_eq!(requests.oldest(), Some(at(2)));
        assert_eq!(requests.add(at(4)), first);
        requests.remove(second);
        requests.remove(third);
        assert_eq!(requests.oldest(), Some(at(4)));
    }
}
