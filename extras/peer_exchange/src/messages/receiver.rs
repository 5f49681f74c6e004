//! Checks and decrypts the messages of other gateways.

use super::exchange_key::{ExchangeKey, SessionId};
use super::message::{MAX_MESSAGE_BYTES, PeerMessage};
use super::sealer::{HEAD_BYTES, MAGIC, VERSION, nonce};
use ring::aead::{Aad, LessSafeKey};
use std::time::{Duration, Instant};
use tokenweir_protocol::named_enum;
use tokenweir_routing::MAX_PEERS;

/// Checks the messages of the message bus, and decrypts those of other gateways.
#[derive(Debug)]
pub struct Receiver {
    key: ExchangeKey,
    own: SessionId,
    peers: Vec<KnownPeer>,
}

/// A gateway that sent a valid message.
#[derive(Debug)]
struct KnownPeer {
    session: SessionId,
    key: LessSafeKey,
    last_sequence: u64,
    last_at: Instant,
}

/// A valid message of the bus.
#[derive(Debug, PartialEq)]
pub enum ReceivedMessage {
    /// The bus returned a message of this gateway.
    Own,
    /// A message of another gateway, with the index of that gateway among the others, below [`MAX_PEERS`].
    Peer(usize, PeerMessage),
}

named_enum! {
    /// Why a message is ignored.
    #[derive(thiserror::Error)]
    pub enum Rejection {
        /// The message is too short or too long, or its content is damaged.
        #[error("a message is damaged")]
        Malformed = "malformed",
        /// The protocol version of the message is not that of this gateway.
        #[error("a gateway sends messages of another protocol version")]
        Version = "version",
        /// The message was changed, or was not encrypted with the shared key of this gateway.
        #[error("a message was not made with the shared key: do all gateways have the same key?")]
        Authentication = "authentication",
        /// The message was received before, or is older than a received message of the same gateway.
        #[error("the gateway has already received this message")]
        Replayed = "replayed",
        /// The time in the message differs from the present time by more than [`MAX_CLOCK_DIFFERENCE`].
        #[error("a message has a time that differs by more than 30 s: are the clocks synchronized?")]
        Expired = "expired",
        /// The message is from a new gateway, but [`MAX_PEERS`] other gateways are known already.
        #[error("more than 32 other gateways send messages")]
        TooManyPeers = "too_many_peers",
    }
}

/// Maximum difference between the time in a message and the time of its reception.
pub const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(30);
/// Time without a message after which a gateway is forgotten. By then the last message of this gateway
/// has expired, so nobody can replay it. The time is twice [`MAX_CLOCK_DIFFERENCE`] plus 1 s, because
/// the clock of the other gateway may be ahead.
const FORGET_AFTER: Duration = Duration::from_secs(2 * 30 + 1);

impl Receiver {
    /// Receives messages for the gateway with session `own`.
    pub const fn new(key: ExchangeKey, own: SessionId) -> Self {
        Self {
            key,
            own,
            peers: Vec::new(),
        }
    }

    /// Checks and decrypts a message that arrived at `now`, which is `now_millis` milliseconds
    /// after 1970.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        now: Instant,
        now_millis: u64,
    ) -> Result<ReceivedMessage, Rejection> {
        let (head, content) = bytes.split_first_chunk().ok_or(Rejection::Malformed)?;
        if bytes.len() > MAX_MESSAGE_BYTES {
            return Err(Rejection::Malformed);
        }
        let (session, sequence) = read_head(head)?;
        if session == self.own {
            return Ok(ReceivedMessage::Own);
        }
        let known = self.peers.iter().position(|peer| peer.session == session);
        let derived;
        let key = if let Some(number) = known {
            &self.peers[number].key
        } else {
            derived = self
                .key
                .message_key(&session)
                .ok_or(Rejection::Authentication)?;
            &derived
        };
        let mut content = content.to_vec();
        let opened = key.open_in_place(nonce(sequence), Aad::from(head), &mut content);
        let opened = opened.map_err(|_| Rejection::Authentication)?;
        if known.is_some_and(|number| sequence <= self.peers[number].last_sequence) {
            return Err(Rejection::Replayed);
        }
        let message = PeerMessage::decode(opened).ok_or(Rejection::Malformed)?;
        if u128::from(message.sent_at_millis.abs_diff(now_millis))
            > MAX_CLOCK_DIFFERENCE.as_millis()
        {
            return Err(Rejection::Expired);
        }
        let number = match known {
            Some(number) => number,
            None => self.add(session, now)?,
        };
        let peer = &mut self.peers[number];
        (peer.last_sequence, peer.last_at) = (sequence, now);
        Ok(ReceivedMessage::Peer(number, message))
    }

    /// Age of the last message of each other gateway that sent one in the last 61 seconds.
    pub fn ages(&self, now: Instant) -> impl Iterator<Item = Duration> {
        let ages = self
            .peers
            .iter()
            .map(move |peer| now.saturating_duration_since(peer.last_at));
        ages.filter(|age| *age < FORGET_AFTER)
    }

    /// Adds a gateway and returns its index: the index of a gateway that is forgotten ([`FORGET_AFTER`]),
    /// or else the next free index.
    fn add(&mut self, session: SessionId, now: Instant) -> Result<usize, Rejection> {
        let key = self
            .key
            .message_key(&session)
            .ok_or(Rejection::Authentication)?;
        let added = KnownPeer {
            session,
            key,
            last_sequence: 0,
            last_at: now,
        };
        let is_forgotten =
            |peer: &KnownPeer| now.saturating_duration_since(peer.last_at) >= FORGET_AFTER;
        if let Some(number) = self.peers.iter().position(is_forgotten) {
            self.peers[number] = added;
            return Ok(number);
        }
        if self.peers.len() == MAX_PEERS {
            return Err(Rejection::TooManyPeers);
        }
        self.peers.push(added);
        Ok(self.peers.len() - 1)
    }
}

/// Reads the head of a message: the session of its sender and its sequence number. The head is not
/// yet authenticated.
fn read_head(head: &[u8; HEAD_BYTES]) -> Result<(SessionId, u64), Rejection> {
    if head[..4] != MAGIC {
        return Err(Rejection::Malformed);
    }
    if head[4] != VERSION {
        return Err(Rejection::Version);
    }
    let mut session = SessionId::default();
    let mut sequence = [0; 8];
    session.copy_from_slice(&head[5..21]);
    sequence.copy_from_slice(&head[21..]);
    Ok((session, u64::from_be_bytes(sequence)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Sealer;
    use crate::messages::message::tests::message;
    use tokenweir_protocol::clock;

    const NOW_MILLIS: u64 = 1_700_000_000_000;

    fn key(byte: u8) -> ExchangeKey {
        ExchangeKey::new(&[byte; 32]).unwrap()
    }

    fn sealer(session: u8) -> Sealer {
        Sealer::new(&key(1), [session; 16]).unwrap()
    }

    struct TestReceiver(Receiver, Instant);

    impl TestReceiver {
        fn new() -> Self {
            Self(Receiver::new(key(1), [0; 16]), clock::now())
        }

        fn receive_after(
            &mut self,
            seconds: u64,
            bytes: &[u8],
        ) -> Result<ReceivedMessage, Rejection> {
            let now = self.1 + Duration::from_secs(seconds);
            self.0.receive(bytes, now, NOW_MILLIS + seconds * 1_000)
        }

        fn receive(&mut self, bytes: &[u8]) -> Result<ReceivedMessage, Rejection> {
            self.receive_after(0, bytes)
        }
    }

    #[test]
    fn own_and_other_messages_are_told_apart() {
        let mut receiver = TestReceiver::new();
        let mut a = sealer(1);
        let mut b = sealer(2);
        let mut receive = |sealer: &mut Sealer| receiver.receive(&sealer.seal(&message()).unwrap());
        assert_eq!(receive(&mut a), Ok(ReceivedMessage::Peer(0, message())));
        assert_eq!(receive(&mut b), Ok(ReceivedMessage::Peer(1, message())));
        assert_eq!(receive(&mut a), Ok(ReceivedMessage::Peer(0, message())));
        assert_eq!(receive(&mut sealer(0)), Ok(ReceivedMessage::Own));
    }

    #[test]
    fn an_encrypted_message_hides_hashes_and_numbers() {
        let sealed = sealer(1).seal(&message()).unwrap();
        assert!(
            !sealed
                .windows(8)
                .any(|bytes| bytes == u64::MAX.to_le_bytes())
        );
        let equal = [sealer(1), sealer(2)].map(|mut sealer| sealer.seal(&message()).unwrap());
        assert_ne!(equal[0][HEAD_BYTES..], equal[1][HEAD_BYTES..]);
    }

    #[test]
    fn changed_bits_and_other_keys_are_refused() {
        let mut receiver = TestReceiver::new();
        let sealed = sealer(1).seal(&message()).unwrap();
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(receiver.receive(&changed).is_err(), "bit {bit}");
        }
        let foreign = Sealer::new(&key(2), [9; 16])
            .unwrap()
            .seal(&message())
            .unwrap();
        assert_eq!(receiver.receive(&foreign), Err(Rejection::Authentication));
        assert!(receiver.0.peers.is_empty());
    }

    #[test]
    fn truncated_huge_and_future_peer_messages_are_refused() {
        let mut receiver = TestReceiver::new();
        let sealed = sealer(1).seal(&message()).unwrap();
        for length in 0..sealed.len() {
            assert!(
                receiver.receive(&sealed[..length]).is_err(),
                "{length} bytes"
            );
        }
        let mut huge = sealed.clone();
        huge.resize(MAX_MESSAGE_BYTES + 1, 0);
        assert_eq!(receiver.receive(&huge), Err(Rejection::Malformed));
        let mut future = sealed.clone();
        future[4] = VERSION + 1;
        assert_eq!(receiver.receive(&future), Err(Rejection::Version));
        assert!(receiver.0.peers.is_empty());
        assert!(receiver.receive(&sealed).is_ok());
    }

    #[test]
    fn a_message_is_accepted_once_and_in_order() {
        let mut receiver = TestReceiver::new();
        let mut sealer = sealer(1);
        let [first, second] = [0, 1].map(|_| sealer.seal(&message()).unwrap());
        assert!(receiver.receive(&second).is_ok());
        assert_eq!(receiver.receive(&first), Err(Rejection::Replayed));
        assert_eq!(receiver.receive(&second), Err(Rejection::Replayed));
    }

    #[test]
    fn a_replay_under_a_reused_index_is_refused() {
        let mut receiver = TestReceiver::new();
        let recorded = sealer(1).seal(&message()).unwrap();
        assert!(receiver.receive(&recorded).is_ok());
        assert_eq!(
            receiver.receive_after(62, &recorded),
            Err(Rejection::Replayed)
        );
        let later = PeerMessage {
            sent_at_millis: NOW_MILLIS + 62_000,
            ..message()
        };
        let other = sealer(2).seal(&later).unwrap();
        assert!(matches!(
            receiver.receive_after(62, &other),
            Ok(ReceivedMessage::Peer(0, _))
        ));
        assert_eq!(
            receiver.receive_after(62, &recorded),
            Err(Rejection::Expired)
        );
        let mut restarted = TestReceiver::new();
        assert_eq!(
            restarted.receive_after(31, &recorded),
            Err(Rejection::Expired)
        );
    }

    #[test]
    fn forgotten_indexes_are_reused_and_gateways_bounded() {
        let mut receiver = TestReceiver::new();
        let mut at = |seconds, session| {
            let sent_at_millis = NOW_MILLIS + seconds * 1_000;
            let sealed = sealer(session).seal(&PeerMessage {
                sent_at_millis,
                ..message()
            });
            receiver.receive_after(seconds, &sealed.unwrap())
        };
        for session in 1..=MAX_PEERS as u8 {
            assert!(at(0, session).is_ok());
        }
        assert_eq!(at(1, 99), Err(Rejection::TooManyPeers));
        assert!(matches!(at(61, 99), Ok(ReceivedMessage::Peer(0, _))));
        assert_eq!(
            receiver
                .0
                .ages(receiver.1 + Duration::from_secs(61))
                .count(),
            1
        );
    }
}
