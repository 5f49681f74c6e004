//! Detects requests that may crash backends: a request that was in flight at two crashes is not
//! sent to a third backend.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;

/// Records which requests were in flight when a backend crashed. A request is identified by a hash
/// of its body.
#[derive(Debug, Default)]
pub struct PoisonRequestDetector {
    /// The hash of the request and the instant of the crash, oldest record first.
    crashes: Mutex<VecDeque<(u64, Instant)>>,
}

/// Time after which the record of a crash is removed.
const CRASH_RETENTION: Duration = Duration::from_mins(10);
/// Greatest number of records. One crash of a backend adds a record for each request that was in flight
/// on the backend.
const MAX_RECORDED_CRASHES: usize = 4_096;
/// Number of crashes at which a request is suspected to be their cause.
const CRASH_THRESHOLD: usize = 2;

impl PoisonRequestDetector {
    /// Records that a backend crashed while a request was in flight on it. `fingerprint` is the
    /// hash of the request body. Returns whether the request is suspected to be the cause, so it
    /// must not be sent to another backend.
    pub fn on_death(&self, fingerprint: u64, now: Instant) -> bool {
        let mut crashes = lock(&self.crashes);
        crashes.retain(|(_, at)| now.saturating_duration_since(*at) < CRASH_RETENTION);
        push_bounded(&mut crashes, (fingerprint, now), MAX_RECORDED_CRASHES);
        crashes.iter().filter(|(recorded, _)| *recorded == fingerprint).count() >= CRASH_THRESHOLD
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn a_request_is_suspected_as_the_cause_at_the_second_backend_crash_during_it() {
        let (detector, now) = (PoisonRequestDetector::default(), clock::epoch());
        assert!(!detector.on_death(1, now));
        assert!(!detector.on_death(2, now), "another request");
        assert!(detector.on_death(1, now + Duration::from_mins(1)));
    }

    #[test]
    fn records_of_backend_crashes_expire_and_their_number_is_bounded() {
        let (detector, now) = (PoisonRequestDetector::default(), clock::epoch());
        assert!(!detector.on_death(1, now));
        assert!(!detector.on_death(1, now + CRASH_RETENTION), "the first crash has expired");
        for other in 0..2 * MAX_RECORDED_CRASHES as u64 {
            detector.on_death(100 + other, now + CRASH_RETENTION);
        }
        assert_eq!(detector.crashes.lock().unwrap().len(), MAX_RECORDED_CRASHES);
    }
}
