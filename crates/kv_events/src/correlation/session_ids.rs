//! The session ids that the gateway sets on its requests. A client cannot guess one: each begins with
//! a random number of the process, which only backends see.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes session ids, and recognises them in events.
#[derive(Debug)]
pub struct SessionIds {
    prefix: String,
    next: AtomicU64,
}

impl SessionIds {
    /// Ids of a process. `key`: a secret random number.
    pub fn new(key: u64) -> Self {
        Self { prefix: format!("tw.{key:016x}."), next: AtomicU64::new(0) }
    }

    /// A new id: its number and its text.
    pub fn issue(&self) -> (u64, String) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut text = String::with_capacity(self.prefix.len() + 16);
        text.push_str(&self.prefix);
        // Writing to a string cannot fail.
        let _ = write!(text, "{number:x}");
        (number, text)
    }

    /// The number of an id of this process. `None`: another program made the id.
    pub fn number_of(&self, id: &str) -> Option<u64> {
        let number = u64::from_str_radix(id.strip_prefix(&self.prefix)?, 16).ok()?;
        (number < self.next.load(Ordering::Relaxed)).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_that_were_issued_are_recognised() {
        let ids = SessionIds::new(7);
        let (first, second) = (ids.issue(), ids.issue());
        assert_ne!(first, second);
        assert_eq!(ids.number_of(&second.1), Some(second.0));
        let foreign = SessionIds::new(8).issue().1;
        for id in [&foreign, "tw.0000000000000007.2", "tw.0000000000000007.", "", "session"] {
            assert_eq!(ids.number_of(id), None, "{id}");
        }
    }
}
