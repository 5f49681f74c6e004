//! Encrypts and authenticates the messages of one gateway.
//!
//! ```text
//! "twpx"   version: u8   session: 16 bytes   sequence: u64 (big-endian)   ciphertext   tag: 16 bytes
//! ```
//!
//! The head is authenticated but not encrypted. The algorithm is ChaCha20-Poly1305; the nonce is the sequence
//! number.

use super::exchange_key::{ExchangeKey, SessionId};
use super::message::PeerMessage;
use ring::aead::{Aad, LessSafeKey, Nonce};

/// Encrypts the messages of one gateway process (a session).
#[derive(Debug)]
pub struct Sealer {
    session: SessionId,
    key: LessSafeKey,
    next_sequence: u64,
}

/// Version of the protocol of the messages between gateways.
pub(crate) const VERSION: u8 = 1;
/// The first bytes of every message, in every version of the protocol.
pub(crate) const MAGIC: [u8; 4] = *b"twpx";
/// Length of the message head, which precedes the ciphertext, in bytes.
pub(crate) const HEAD_BYTES: usize = 4 + 1 + 16 + 8;

impl Sealer {
    /// Encrypts messages of `session`, an id that no other process of a gateway may have. `None`: no key
    /// can be derived.
    pub fn new(key: &ExchangeKey, session: SessionId) -> Option<Self> {
        Some(Self {
            session,
            key: key.message_key(&session)?,
            next_sequence: 0,
        })
    }

    /// Encrypts a message. `None`: the encryption failed.
    pub fn seal(&mut self, message: &PeerMessage) -> Option<Vec<u8>> {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&MAGIC);
        head[4] = VERSION;
        head[5..21].copy_from_slice(&self.session);
        head[21..].copy_from_slice(&sequence.to_be_bytes());
        let mut content = message.encode();
        let aad = Aad::from(head);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(sequence), aad, &mut content)
            .ok()?;
        Some([&head[..], &content[..], tag.as_ref()].concat())
    }
}

pub(crate) fn nonce(sequence: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&sequence.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}
