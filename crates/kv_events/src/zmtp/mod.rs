//! A subscriber of KV events over ZeroMQ: ZMTP 3.0 with the NULL mechanism over TCP, as much of it
//! as a SUB and a DEALER socket need.
//!
//! <https://rfc.zeromq.org/spec/23/>. Decision 0015 states why this is not the crate `zeromq`.

mod connection;
mod frame;
mod handshake;
mod subscriber;

pub use connection::{Connection, ConnectionError, Endpoint, InvalidEndpoint};
pub use frame::ProtocolError;
pub use handshake::SocketType;
pub use subscriber::{ApplyError, EventSink, Subscriber};
