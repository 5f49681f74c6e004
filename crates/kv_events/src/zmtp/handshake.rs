//! The handshake of ZMTP: each side sends a greeting, and then the command READY.

use super::frame::{ProtocolError, write_command};

/// The ZeroMQ type of the socket on this side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketType {
    /// Receives published messages. The peer is a PUB socket.
    Sub,
    /// Asks for replays. The peer is a ROUTER socket.
    Dealer,
    /// Publishes messages. The peer is a SUB socket.
    #[cfg(feature = "publisher")]
    Pub,
    /// Replays messages. The peer is a DEALER socket.
    #[cfg(feature = "publisher")]
    Router,
}

/// Length of a greeting in bytes.
pub(super) const GREETING_BYTES: usize = 64;
/// Maximum number of bytes of a text from the peer that an error message shows.
const MAX_SHOWN_BYTES: usize = 80;

impl SocketType {
    /// The ZeroMQ name of this type, and the names of the types that its peer may have.
    const fn names(self) -> (&'static str, [&'static str; 2]) {
        match self {
            Self::Sub => ("SUB", ["PUB", "XPUB"]),
            Self::Dealer => ("DEALER", ["ROUTER", "ROUTER"]),
            #[cfg(feature = "publisher")]
            Self::Pub => ("PUB", ["SUB", "XSUB"]),
            #[cfg(feature = "publisher")]
            Self::Router => ("ROUTER", ["DEALER", "REQ"]),
        }
    }
}

/// The greeting that this side sends: signature, version 3.0, mechanism NULL, not a server.
pub(super) fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9]) = (0xff, 0x7f);
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

pub(super) fn check_greeting(greeting: &[u8; GREETING_BYTES]) -> Result<(), ProtocolError> {
    if greeting[0] != 0xff || greeting[9] & 1 != 1 || greeting[10] < 3 {
        return Err(ProtocolError::Greeting);
    }
    let mechanism = greeting[12..32]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    if mechanism == b"NULL" {
        Ok(())
    } else {
        Err(ProtocolError::Mechanism(shown(mechanism)))
    }
}

/// Appends the READY command of this side, a socket of the type `socket`, to `out`.
pub(super) fn write_ready(socket: SocketType, out: &mut Vec<u8>) {
    let (name, _) = socket.names();
    let data = [
        b"\x0bSocket-Type",
        &(name.len() as u32).to_be_bytes()[..],
        name.as_bytes(),
    ]
    .concat();
    write_command("READY", &data, out);
}

/// Checks the first command of the peer, which must be READY with the right type of socket.
pub(super) fn check_ready(socket: SocketType, command: &[u8]) -> Result<(), ProtocolError> {
    if let Some(reason) = command.strip_prefix(b"\x05ERROR") {
        return Err(ProtocolError::Refused(shown(
            reason.get(1..).unwrap_or_default(),
        )));
    }
    let mut properties = command
        .strip_prefix(b"\x05READY")
        .ok_or(ProtocolError::Frame)?;
    while let Some((name, value, rest)) = property(properties) {
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            let (_, peers) = socket.names();
            let is_expected = peers.iter().any(|peer| peer.as_bytes() == value);
            let wrong = || ProtocolError::SocketType {
                found: shown(value),
                expected: peers[0],
            };
            return if is_expected { Ok(()) } else { Err(wrong()) };
        }
        properties = rest;
    }
    Err(ProtocolError::Frame)
}

/// Reads the first property of the metadata. Returns its name, its value and the properties after
/// it.
fn property(properties: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (length, rest) = properties.split_first()?;
    let (name, rest) = rest.split_at_checked((*length).into())?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (value, rest) = rest.split_at_checked(length)?;
    Some((name, value, rest))
}

/// Formats a text from the peer for an error message.
fn shown(text: &[u8]) -> String {
    let text = &text[..text.len().min(MAX_SHOWN_BYTES)];
    text.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The READY command that libzmq 4.3.5 sends as a PUB socket.
    const PUB: &[u8] = b"\x05READY\x0bSocket-Type\0\0\0\x03PUB";

    #[test]
    fn a_publisher_without_authentication_is_accepted() {
        let mut theirs = greeting();
        theirs[11] = 1;
        assert_eq!(check_greeting(&theirs), Ok(()));
        assert_eq!(check_ready(SocketType::Sub, PUB), Ok(()));
    }

    #[test]
    fn the_error_states_what_the_peer_is() {
        let mut curve = greeting();
        curve[12..17].copy_from_slice(b"CURVE");
        assert_eq!(
            check_greeting(&curve),
            Err(ProtocolError::Mechanism("CURVE".into()))
        );
        let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        assert_eq!(
            check_greeting(http.first_chunk().unwrap()),
            Err(ProtocolError::Greeting)
        );
        let wrong = check_ready(SocketType::Dealer, PUB).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "the KV event port has a PUB socket, expected ROUTER"
        );
        let refused = check_ready(SocketType::Sub, b"\x05ERROR\x03no\n").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the publisher of KV events refuses the connection: no\\n"
        );
        for damaged in [
            &b"\x05READY"[..],
            &PUB[..20],
            b"",
            b"\x05READY\x0bSocket-Type\xff\xff\xff\xff",
        ] {
            assert_eq!(
                check_ready(SocketType::Sub, damaged),
                Err(ProtocolError::Frame)
            );
        }
    }
}
