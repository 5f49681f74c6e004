//! A ZMTP connection to one socket of another program. ZMTP is the protocol of ZeroMQ.

use super::frame::{FrameDecoder, ProtocolError, Traffic, write_command, write_message};
use super::handshake::{
    GREETING_BYTES, SocketType, check_greeting, check_ready, greeting, write_ready,
};
use bytes::Bytes;
use std::io;
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Address of a ZeroMQ socket: `tcp://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ZmqEndpoint {
    /// Host name or IP address. An IPv6 address has no brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Error for a text that is not an address of the form `tcp://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no endpoint of KV events; write tcp://HOST:PORT")]
pub struct InvalidEndpoint(String);

/// Why the connection to a publisher of KV events failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The network failed, or the peer closed the connection.
    #[error("the connection to the publisher of KV events failed: {0}")]
    Io(#[from] io::Error),
    /// The peer violates the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The peer did not respond in time to a connection attempt, the handshake, a ping or a replay request.
    #[error("the publisher of KV events does not answer")]
    Unresponsive,
}

/// An open ZMTP connection after the handshake.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    decoder: FrameDecoder,
    out: Vec<u8>,
}

/// Time limit of each of three steps: opening the connection, the handshake, and a write.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of one read.
const READ_BYTES: usize = 16 << 10;

impl FromStr for ZmqEndpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let endpoint = text
            .strip_prefix("tcp://")
            .and_then(Self::from_host_and_port);
        endpoint.ok_or_else(|| InvalidEndpoint(text.to_owned()))
    }
}

impl ZmqEndpoint {
    fn from_host_and_port(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        if host.is_empty() || bare.is_none() && host.contains(':') {
            return None;
        }
        Some(Self {
            host: bare.unwrap_or(host).to_owned(),
            port,
        })
    }
}

impl Connection {
    /// Connects, and performs the handshake as a socket of the type `socket`.
    pub async fn open(endpoint: &ZmqEndpoint, socket: SocketType) -> Result<Self, ConnectionError> {
        let address = (endpoint.host.as_str(), endpoint.port);
        Self::accept(within(TcpStream::connect(address)).await??, socket).await
    }

    /// Performs the handshake on an accepted connection as a socket of the type `socket`.
    pub(super) async fn accept(
        stream: TcpStream,
        socket: SocketType,
    ) -> Result<Self, ConnectionError> {
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream,
            decoder: FrameDecoder::default(),
            out: Vec::new(),
        };
        within(connection.shake(socket)).await??;
        Ok(connection)
    }

    /// Performs the handshake: both sides send their greeting and then READY, without waiting for
    /// each other.
    async fn shake(&mut self, socket: SocketType) -> Result<(), ConnectionError> {
        self.stream.write_all(&greeting()).await?;
        let mut theirs = [0; GREETING_BYTES];
        self.stream.read_exact(&mut theirs).await?;
        check_greeting(&theirs)?;
        write_ready(socket, &mut self.out);
        self.write_out().await?;
        match self.traffic().await? {
            Traffic::Command(command) => Ok(check_ready(socket, &command)?),
            Traffic::Message(_) => Err(ProtocolError::Frame.into()),
        }
    }

    /// Subscribes to the messages whose topic, the first part of a message, begins with `topic`.
    pub async fn subscribe(&mut self, topic: &str) -> Result<(), ConnectionError> {
        let subscription = [&[1], topic.as_bytes()].concat();
        self.send(&[&subscription]).await
    }

    /// Sends one message. `parts`: its parts.
    pub async fn send(&mut self, parts: &[&[u8]]) -> Result<(), ConnectionError> {
        self.write(parts);
        self.flush().await
    }

    /// Adds a message to those that the next [`Self::flush`] sends.
    pub(super) fn write(&mut self, parts: &[&[u8]]) {
        write_message(parts, &mut self.out);
    }

    /// Sends the messages that [`Self::write`] added.
    pub(super) async fn flush(&mut self) -> Result<(), ConnectionError> {
        within(self.write_out()).await?
    }

    /// Sends a ping to the peer.
    pub async fn ping(&mut self) -> Result<(), ConnectionError> {
        write_command("PING", &[0, 0], &mut self.out);
        self.flush().await
    }

    /// The parts of the next message. `None`: the next message is a PONG, the answer to a ping. If the future
    /// is dropped before it completes, no message is lost.
    pub async fn receive(&mut self) -> Result<Option<Vec<Bytes>>, ConnectionError> {
        loop {
            match self.traffic().await? {
                Traffic::Message(parts) => return Ok(Some(parts)),
                Traffic::Command(command) if command.starts_with(b"\x04PONG") => return Ok(None),
                Traffic::Command(command) => {
                    // The data of a PING are a time to live of two bytes, and a context that the PONG must
                    // return.
                    if let Some(context) = command
                        .strip_prefix(b"\x04PING")
                        .and_then(|ping| ping.get(2..))
                    {
                        write_command("PONG", &context[..context.len().min(16)], &mut self.out);
                        self.write_out().await?;
                    }
                }
            }
        }
    }

    async fn traffic(&mut self) -> Result<Traffic, ConnectionError> {
        loop {
            if let Some(traffic) = self.decoder.next()? {
                return Ok(traffic);
            }
            let buffer = self.decoder.buffer();
            buffer.reserve(READ_BYTES);
            if self.stream.read_buf(buffer).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
    }

    /// Writes the bytes in `out`. If the future is dropped, `out` keeps the bytes that were not
    /// written.
    async fn write_out(&mut self) -> Result<(), ConnectionError> {
        while !self.out.is_empty() {
            let written = self.stream.write(&self.out).await?;
            self.out.drain(..written);
        }
        Ok(())
    }
}

async fn within<T>(step: impl Future<Output = T>) -> Result<T, ConnectionError> {
    timeout(STEP_TIMEOUT, step)
        .await
        .map_err(|_| ConnectionError::Unresponsive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_tcp_address_with_port() {
        let parse = |text: &str| text.parse::<ZmqEndpoint>().map(|e| (e.host, e.port)).ok();
        assert_eq!(parse("tcp://vllm-0:5557"), Some(("vllm-0".into(), 5557)));
        assert_eq!(
            parse("tcp://[fd00::1]:5557"),
            Some(("fd00::1".into(), 5557))
        );
        for wrong in [
            "vllm-0:5557",
            "ipc:///tmp/x",
            "tcp://a",
            "tcp://:1",
            "tcp://a:0",
            "tcp://::1:5",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
