//! The session ids that the gateway sets on its requests. A client cannot guess a session id: each begins
//! with a random number of the gateway process, which only backends see.
//!
//! ```text
//! tw . PROCESS . NUMBER [ . OUTLINE ]
//! ```
//!
//! Gateways that share a key add the outline of the prompt. An HMAC of the whole id authenticates
//! the outline, so a client that chooses its own session id cannot make a gateway learn a wrong
//! text.

use super::prompt_outline::PromptOutline;
use ring::hmac;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes the session ids that the gateway sets on its requests, and recognises them in KV events.
#[derive(Debug)]
pub struct SessionIds {
    prefix: String,
    next: AtomicU64,
    /// The key that authenticates outlines. `None`: ids have no outline.
    outline_key: Option<OutlineKey>,
}

/// The key that authenticates the outlines of gateways, for HMAC-SHA-256.
pub type OutlineKey = hmac::Key;

/// Beginning of the session ids of all gateways.
const MARK: &str = "tw.";

impl SessionIds {
    /// Creates the maker of the session ids of this gateway process. `process`: a secret random
    /// number. `outline_key`: a secret that all gateways share. `None`: the ids have no outlines.
    pub fn new(process: u64, outline_key: Option<OutlineKey>) -> Self {
        Self { prefix: format!("{MARK}{process:016x}."), next: AtomicU64::new(0), outline_key }
    }

    /// Makes a new id. Returns its number and its text. `outline` makes the outline of the prompt;
    /// it is called only if the ids have outlines.
    pub fn issue(&self, outline: impl FnOnce() -> PromptOutline) -> (u64, String) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut text = String::with_capacity(self.prefix.len() + 16);
        text.push_str(&self.prefix);
        // Writing to a string cannot fail.
        let _ = write!(text, "{number:x}");
        if let Some(key) = &self.outline_key {
            let outline = outline().encode(|content| {
                let tag = hmac::sign(key, &authenticated(&text, content));
                tag.as_ref().first_chunk().copied().unwrap_or_default()
            });
            text.push('.');
            text.push_str(&outline);
        }
        (number, text)
    }

    /// Returns the number in a session id that this gateway process made. `None`: another program
    /// made the id.
    pub fn number_of(&self, id: &str) -> Option<u64> {
        let number = id.strip_prefix(&self.prefix)?;
        let number = number.split_once('.').map_or(number, |(number, _)| number);
        let number = u64::from_str_radix(number, 16).ok()?;
        (number < self.next.load(Ordering::Relaxed)).then_some(number)
    }

    /// The outline in an id, for an event whose first block begins at the token `first_token` of
    /// its prompt. `None`: the id has no outline, its outline was not made with the shared key, or
    /// the blocks of the event contain output, which no outline covers.
    pub fn outline(&self, id: &str, first_token: u64) -> Option<PromptOutline> {
        let key = self.outline_key.as_ref()?;
        let (head, outline) = id.strip_prefix(MARK).and_then(|_| id.rsplit_once('.'))?;
        // The engine's events for blocks of output have the session id of the request too. This check rejects
        // them before the HMAC is computed, which costs more.
        if first_token >= u64::from(PromptOutline::peek_tokens(outline)?) {
            return None;
        }
        PromptOutline::decode(outline, |content, tag| {
            hmac::verify(key, &authenticated(head, content), tag).is_ok()
        })
    }
}

/// The bytes that the HMAC authenticates: `head`, which is the beginning of the id, a zero byte,
/// and `content`, which is the outline. No head contains a zero byte, so different pairs of head
/// and content give different bytes.
fn authenticated(head: &str, content: &[u8]) -> Vec<u8> {
    [head.as_bytes(), &[0], content].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(process: u64, key: Option<u8>) -> SessionIds {
        let key = key.map(|key| hmac::Key::new(hmac::HMAC_SHA256, &[key; 32]));
        SessionIds::new(process, key)
    }

    fn outline() -> PromptOutline {
        PromptOutline::new(&[1, 2, 3], 512, 1_600, 400)
    }

    #[test]
    fn a_gateway_recognises_only_the_session_ids_that_it_made() {
        for key in [None, Some(1)] {
            let ids = ids(7, key);
            let (first, second) = (ids.issue(outline), ids.issue(outline));
            assert_ne!(first, second);
            assert_eq!(ids.number_of(&second.1), Some(second.0));
            let foreign = SessionIds::new(8, None).issue(outline).1;
            for id in [&foreign, "tw.0000000000000007.2", "tw.0000000000000007.", "", "session"] {
                assert_eq!(ids.number_of(id), None, "{id}");
            }
        }
    }

    #[test]
    fn gateways_with_the_same_key_read_the_outlines_of_each_other() {
        let (sender, receiver) = (ids(7, Some(1)), ids(8, Some(1)));
        let id = sender.issue(outline).1;
        assert_eq!(receiver.outline(&id, 0), Some(outline()));
        assert_eq!(receiver.outline(&id, 399), Some(outline()));
        assert_eq!(receiver.outline(&id, 400), None, "a block of output");
        for other in [ids(8, Some(2)), ids(8, None)] {
            assert_eq!(other.outline(&id, 0), None);
        }
        assert_eq!(receiver.outline(&ids(7, None).issue(outline).1, 0), None);
    }

    #[test]
    fn a_session_id_with_a_changed_byte_has_no_valid_outline() {
        let receiver = ids(8, Some(1));
        let id = ids(7, Some(1)).issue(outline).1;
        for position in 0..id.len() {
            let mut changed = id.clone().into_bytes();
            changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(receiver.outline(&changed, 0), None, "{changed}");
        }
        for end in 0..id.len() {
            assert_eq!(receiver.outline(&id[..end], 0), None);
        }
    }
}
