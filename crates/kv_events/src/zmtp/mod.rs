//! A subscriber of KV events over ZeroMQ. It implements the part of ZMTP 3.0 that a SUB and a DEALER socket
//! need, with the NULL mechanism (no authentication) over TCP. The feature `publisher` adds the PUB and the
//! ROUTER socket of a simulated engine.
//!
//! <https://rfc.zeromq.org/spec/23/>. `docs/decisions/0015-kv-event-subscriber.md` states why this module does
//! not use the crate `zeromq`.

mod connection;
mod frame;
mod handshake;
mod subscriber;

#[cfg(feature = "publisher")]
mod publisher;

pub use connection::{Connection, ConnectionError, InvalidEndpoint, ZmqEndpoint};
pub use frame::ProtocolError;
pub use handshake::SocketType;
#[cfg(feature = "publisher")]
pub use publisher::{BUFFER_MESSAGES, Publisher};
pub use subscriber::{ApplyError, EventSink, Subscriber};
