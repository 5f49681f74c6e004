//! The session ids that the gateway sets on its requests. A client cannot guess a session id, because the id
//! begins with a random number of the gateway process, which only backends see.
//!
//! ```text
//! tw . PROCESS . NUMBER
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

/// Creates the session ids that the gateway sets on its requests, and recognizes them in KV events.
#[derive(Debug)]
pub struct SessionIds {
    prefix: String,
    next: AtomicU64,
}

/// A session id that the gateway created for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedSessionId {
    /// Sequence number of the id. No other id of this gateway process has it.
    pub number: u64,
    /// The id as engines see it.
    pub text: String,
}

impl SessionIds {
    /// Creates the source of the session ids of this gateway process. `process`: a secret random number.
    pub fn new(process: u64) -> Self {
        Self {
            prefix: format!("tw.{process:016x}."),
            next: AtomicU64::new(0),
        }
    }

    /// Creates an id that this process has not issued before.
    pub fn issue(&self) -> IssuedSessionId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let text = format!("{}{number:x}", self.prefix);
        IssuedSessionId { number, text }
    }

    /// Returns the number in a session id that this gateway process created. `None`: the id comes from another
    /// program.
    pub fn number_of(&self, id: &str) -> Option<u64> {
        let number = id.strip_prefix(&self.prefix)?;
        let number = u64::from_str_radix(number, 16).ok()?;
        let is_issued = number < self.next.load(Ordering::Relaxed);
        is_issued.then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_recognises_only_ids_it_made() {
        let ids = SessionIds::new(7);
        let first = ids.issue();
        let second = ids.issue();
        assert_ne!(first, second);
        assert_eq!(ids.number_of(&second.text), Some(second.number));
        let foreign = SessionIds::new(8).issue().text;
        for id in [
            &foreign,
            "tw.0000000000000007.2",
            "tw.0000000000000007.",
            "",
            "session",
        ] {
            assert_eq!(ids.number_of(id), None, "{id}");
        }
    }
}
