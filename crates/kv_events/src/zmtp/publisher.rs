//! Publishes the events of one engine as vLLM does: a PUB socket sends new messages, and a ROUTER socket
//! replays the last messages on request.
//!
//! The publisher does not wait for subscribers. All connections read the same buffer of the last messages. A
//! slow subscriber misses messages that the buffer has dropped, and recognizes the gap by the message numbers.

use super::connection::{Connection, ConnectionError};
use super::frame::ProtocolError;
use super::handshake::SocketType;
use super::subscriber::{REPLAY_END, number_of};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Mutex;
use tokenweir_protocol::mutex::lock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Publishes messages to any number of subscribers.
#[derive(Debug)]
pub struct Publisher {
    topic: String,
    buffer: Mutex<Buffer>,
    next: watch::Sender<u64>,
}

/// The last published messages, within two limits of their number and size.
#[derive(Debug, Default)]
struct Buffer {
    /// Number of the first message in `payloads`.
    first: u64,
    payloads: VecDeque<Bytes>,
    bytes: usize,
}

/// Maximum number of messages that can be replayed: the default of vLLM's `buffer_steps`.
pub const BUFFER_MESSAGES: usize = 10_000;
/// Maximum size in bytes of the messages that can be replayed.
const BUFFER_BYTES: usize = 16 << 20;
/// Maximum number of messages that are sent by one write to a connection.
const MESSAGES_PER_WRITE: usize = 64;
/// Maximum number of subscriptions of one connection. Further subscriptions are ignored.
const MAX_SUBSCRIPTIONS: usize = 64;

impl Buffer {
    fn end(&self) -> u64 {
        self.first + self.payloads.len() as u64
    }

    fn push(&mut self, payload: Bytes) {
        self.bytes += payload.len();
        self.payloads.push_back(payload);
        while self.payloads.len() > BUFFER_MESSAGES || self.bytes > BUFFER_BYTES {
            self.bytes -= self.payloads.pop_front().map_or(0, |payload| payload.len());
            self.first += 1;
        }
    }
}

impl Publisher {
    /// Creates a publisher of messages with this topic.
    pub fn new(topic: String) -> Self {
        Self {
            topic,
            buffer: Mutex::default(),
            next: watch::Sender::new(0),
        }
    }

    /// Stores a message for all subscribers and for replays. Does not wait for a subscriber.
    pub fn publish(&self, payload: Vec<u8>) {
        let mut buffer = lock(&self.buffer);
        buffer.push(payload.into());
        self.next.send_replace(buffer.end());
    }

    /// Serves subscribers and replays. Dropping the future closes all connections. While the future is not
    /// polled, the publisher sends nothing, like a stopped process.
    pub async fn serve(&self, live: TcpListener, replay: TcpListener) -> Infallible {
        let mut connections = FuturesUnordered::new();
        loop {
            let (accepted, socket) = tokio::select! {
                accepted = live.accept() => (accepted, SocketType::Pub),
                accepted = replay.accept() => (accepted, SocketType::Router),
                Some(()) = connections.next(), if !connections.is_empty() => continue,
            };
            if let Ok((stream, _)) = accepted {
                connections.push(async move {
                    // An error ends only this connection, and the subscriber can connect again.
                    let _ = match socket {
                        SocketType::Pub => self.publish_to(stream).await,
                        _ => self.replay_to(stream).await,
                    };
                });
            }
        }
    }

    async fn publish_to(&self, stream: TcpStream) -> Result<Infallible, ConnectionError> {
        let mut end = self.next.subscribe();
        let mut connection = Connection::accept(stream, SocketType::Pub).await?;
        let mut topics: Vec<Bytes> = Vec::new();
        let mut next = 0;
        loop {
            tokio::select! {
                received = connection.receive() => {
                    let parts = received?.unwrap_or_default();
                    let Some(part) = parts.first().filter(|part| !part.is_empty()) else { continue };
                    let topic = part.slice(1..);
                    if topics.is_empty() {
                        next = *end.borrow_and_update();
                    }
                    if part[0] == 0 {
                        topics.retain(|other| *other != topic);
                    } else if topics.len() < MAX_SUBSCRIPTIONS {
                        topics.push(topic);
                    }
                }
                _ = end.changed() => {
                    if topics.iter().any(|topic| self.topic.as_bytes().starts_with(topic)) {
                        next = self.send_from(next, &[self.topic.as_bytes()], &mut connection).await?;
                    }
                }
            }
        }
    }

    async fn replay_to(&self, stream: TcpStream) -> Result<Infallible, ConnectionError> {
        let mut connection = Connection::accept(stream, SocketType::Router).await?;
        loop {
            let Some(request) = connection.receive().await? else {
                continue;
            };
            let [delimiter, start] = &request[..] else {
                return Err(ProtocolError::Frame.into());
            };
            let start = number_of(start)?;
            if !delimiter.is_empty() {
                return Err(ProtocolError::Frame.into());
            }
            self.send_from(start, &[b"", self.topic.as_bytes()], &mut connection)
                .await?;
            connection
                .send(&[b"", b"", &REPLAY_END.to_be_bytes(), b""])
                .await?;
        }
    }

    /// Sends all messages from `number` on. `parts`: the parts of each message before its number. Returns the
    /// number of the next message.
    async fn send_from(
        &self,
        mut number: u64,
        parts: &[&[u8]],
        connection: &mut Connection,
    ) -> Result<u64, ConnectionError> {
        loop {
            let (first, payloads) = self.messages_from(number);
            if payloads.is_empty() {
                return Ok(first);
            }
            number = first;
            for payload in payloads {
                connection.write(&[parts, &[&number.to_be_bytes(), &payload]].concat());
                number += 1;
            }
            connection.flush().await?;
        }
    }

    /// Returns up to [`MESSAGES_PER_WRITE`] stored messages from `number` on, and the number of the first
    /// returned message. It is greater than `number` if the buffer has dropped messages.
    fn messages_from(&self, number: u64) -> (u64, Vec<Bytes>) {
        let buffer = lock(&self.buffer);
        let first = number.clamp(buffer.first, buffer.end());
        let skipped = (first - buffer.first) as usize;
        (
            first,
            buffer
                .payloads
                .iter()
                .skip(skipped)
                .take(MESSAGES_PER_WRITE)
                .cloned()
                .collect(),
        )
    }
}

#[cfg(test)]
#[path = "publisher_tests.rs"]
pub(super) mod tests;
