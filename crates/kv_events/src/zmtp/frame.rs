//! ZMTP frames: splits received bytes into messages and commands, and writes messages and commands.
//! A message consists of one or more parts, each in a frame of its own.

use bytes::{Buf, Bytes, BytesMut};

/// A received ZMTP message or command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Traffic {
    /// The parts of a message, in order.
    Message(Vec<Bytes>),
    /// The body of a command: length of the name, name, data.
    Command(Bytes),
}

/// The peer violates the protocol, or is not the expected program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The peer does not speak version 3 of ZMTP.
    #[error("the server does not speak ZMTP 3: check that the port is that of the KV events")]
    Greeting,
    /// The peer requires this security mechanism, which is not supported.
    #[error("the publisher of KV events uses the security mechanism `{0}`; only NULL is supported")]
    Mechanism(String),
    /// The peer has a socket of another type.
    #[error("the KV event port has a {found} socket, expected {expected}")]
    SocketType {
        /// Type of the peer's socket.
        found: String,
        /// Type that the socket of the peer must have.
        expected: &'static str,
    },
    /// The peer refuses the connection.
    #[error("the publisher of KV events refuses the connection: {0}")]
    Refused(String),
    /// A frame violates the protocol.
    #[error("the publisher of KV events sent an invalid frame")]
    Frame,
    /// A message has too many bytes or parts.
    #[error(
        "the publisher of KV events sent a message of more than {MAX_MESSAGE_BYTES} bytes or {MAX_PARTS} parts"
    )]
    TooLong,
}

/// Splits received bytes into messages and commands.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder {
    buffer: BytesMut,
    /// Parts received so far of a message whose last part has not arrived yet.
    parts: Vec<Bytes>,
    part_bytes: usize,
}

/// Maximum length of a message in bytes. For comparison: the event batch of a vLLM step with 16,384 new tokens
/// has about 80 KB.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Maximum number of parts of a message. A replayed event batch has four.
const MAX_PARTS: usize = 8;

const FLAG_MORE: u8 = 1;
const FLAG_LONG: u8 = 2;
const FLAG_COMMAND: u8 = 4;

impl FrameDecoder {
    /// The buffer that received bytes are appended to.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next message or command. `None`: more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Traffic>, ProtocolError> {
        while let Some((flags, body)) = self.frame()? {
            if flags & FLAG_COMMAND != 0 {
                if flags & FLAG_MORE != 0 {
                    return Err(ProtocolError::Frame);
                }
                return Ok(Some(Traffic::Command(body)));
            }
            self.part_bytes += body.len();
            if self.part_bytes > MAX_MESSAGE_BYTES || self.parts.len() == MAX_PARTS {
                return Err(ProtocolError::TooLong);
            }
            self.parts.push(body);
            if flags & FLAG_MORE == 0 {
                self.part_bytes = 0;
                return Ok(Some(Traffic::Message(std::mem::take(&mut self.parts))));
            }
        }
        Ok(None)
    }

    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, ProtocolError> {
        let Some(flags) = self.buffer.first().copied() else {
            return Ok(None);
        };
        if flags & !(FLAG_MORE | FLAG_LONG | FLAG_COMMAND) != 0 {
            return Err(ProtocolError::Frame);
        }
        let (head, length) = if flags & FLAG_LONG == 0 {
            let Some(length) = self.buffer.get(1) else {
                return Ok(None);
            };
            (2, u64::from(*length))
        } else {
            let Some(length) = self.buffer[1..].first_chunk() else {
                return Ok(None);
            };
            (9, u64::from_be_bytes(*length))
        };
        // The length is checked before any memory is allocated for the frame.
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_MESSAGE_BYTES);
        let length = length.ok_or(ProtocolError::TooLong)?;
        if self.buffer.len() < head + length {
            self.buffer.reserve(head + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(head);
        Ok(Some((flags, self.buffer.split_to(length).freeze())))
    }
}

pub(super) fn write_message(parts: &[&[u8]], out: &mut Vec<u8>) {
    for (index, part) in parts.iter().enumerate() {
        let more = if index + 1 < parts.len() {
            FLAG_MORE
        } else {
            0
        };
        write_frame(more, part, out);
    }
}

pub(super) fn write_command(name: &str, data: &[u8], out: &mut Vec<u8>) {
    let body = [&[name.len() as u8], name.as_bytes(), data].concat();
    write_frame(FLAG_COMMAND, &body, out);
}

fn write_frame(flags: u8, body: &[u8], out: &mut Vec<u8>) {
    if let Ok(length) = u8::try_from(body.len()) {
        out.extend_from_slice(&[flags, length]);
    } else {
        out.push(flags | FLAG_LONG);
        out.extend_from_slice(&(body.len() as u64).to_be_bytes());
    }
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(bytes: &[u8], piece: usize) -> Result<Vec<Traffic>, ProtocolError> {
        let mut decoder = FrameDecoder::default();
        let mut found = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.buffer().extend_from_slice(piece);
            while let Some(traffic) = decoder.next()? {
                found.push(traffic);
            }
        }
        Ok(found)
    }

    #[test]
    fn pieces_of_any_size_are_decoded_equally() {
        let long = vec![7; 300];
        let mut bytes = Vec::new();
        write_message(&[b"topic", b"", &long], &mut bytes);
        write_command("PING", b"\0\0", &mut bytes);
        let expected = [
            Traffic::Message(vec![Bytes::from("topic"), Bytes::new(), Bytes::from(long)]),
            Traffic::Command(Bytes::from_static(b"\x04PING\0\0")),
        ];
        for piece in [1, 2, 3, 100, 1_000] {
            assert_eq!(decode(&bytes, piece).unwrap(), expected);
        }
    }

    #[test]
    fn a_long_frame_is_refused_before_allocation() {
        for length in [u64::MAX, 1 << 60, MAX_MESSAGE_BYTES as u64 + 1] {
            let frame = [&[FLAG_LONG][..], &length.to_be_bytes()].concat();
            assert_eq!(decode(&frame, 9), Err(ProtocolError::TooLong));
        }
    }

    #[test]
    fn too_many_parts_and_invalid_flags_are_refused() {
        let parts = [FLAG_MORE, 0].repeat(MAX_PARTS + 1);
        assert_eq!(decode(&parts, 2), Err(ProtocolError::TooLong));
        assert_eq!(decode(&[0x80, 0], 2), Err(ProtocolError::Frame));
        assert_eq!(
            decode(&[FLAG_COMMAND | FLAG_MORE, 0], 2),
            Err(ProtocolError::Frame)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), piece in 1_usize..50,
        ) {
            let _ = decode(&bytes, piece);
        }
    }
}
