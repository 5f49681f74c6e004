//! Requests that replicas die of. A request that was there when two replicas died is not sent to a
//! third: it may be the cause.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Remembers which requests were present at deaths, by a hash of their bodies.
#[derive(Debug, Default)]
pub struct Poison {
    deaths: Mutex<VecDeque<(u64, Instant)>>,
}

/// How long a death is remembered.
const MEMORY: Duration = Duration::from_mins(10);
/// Most that are remembered. A replica that dies takes all that it has with it.
const MOST: usize = 4_096;
/// As many deaths are no chance.
const SUSPICIOUS: usize = 2;

impl Poison {
    /// A replica died while it had this request. Whether the request may be the cause.
    pub fn on_death(&self, fingerprint: u64, now: Instant) -> bool {
        let mut deaths = self.deaths.lock().unwrap_or_else(PoisonError::into_inner);
        deaths.retain(|(_, at)| now.saturating_duration_since(*at) < MEMORY);
        if deaths.len() >= MOST {
            deaths.pop_front();
        }
        deaths.push_back((fingerprint, now));
        deaths.iter().filter(|(known, _)| *known == fingerprint).count() >= SUSPICIOUS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_request_is_suspected_at_the_second_death() {
        let (poison, now) = (Poison::default(), clock::origin());
        assert!(!poison.on_death(1, now));
        assert!(!poison.on_death(2, now), "another request");
        assert!(poison.on_death(1, now + Duration::from_mins(1)));
    }

    #[test]
    fn deaths_are_forgotten_and_their_number_is_bounded() {
        let (poison, now) = (Poison::default(), clock::origin());
        assert!(!poison.on_death(1, now));
        assert!(!poison.on_death(1, now + MEMORY), "long ago");
        for other in 0..2 * MOST as u64 {
            poison.on_death(100 + other, now + MEMORY);
        }
        assert_eq!(poison.deaths.lock().unwrap().len(), MOST);
    }
}
