//! Receives the events of one publisher until the future is dropped. The subscriber connects, subscribes and
//! asks for replays. After a failure, it connects again. A subscriber that is too slow misses messages,
//! recognizes the gap by their numbers and asks for a replay. The publisher never waits for subscribers.

use super::connection::{Connection, ConnectionError, ZmqEndpoint};
use super::frame::ProtocolError;
use super::handshake::SocketType;
use crate::decoder::DecodeError;
use crate::residency::{EventStream, StreamState, StreamStep, TooManyBlocks};
use bytes::Bytes;
use std::convert::Infallible;
use std::future::pending;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokio::time::{sleep, sleep_until, timeout};
use xxhash_rust::xxh3::xxh3_64;

/// Receives the events of one publisher from a [`Subscriber`].
pub trait EventSink {
    /// Forgets all blocks of the engine.
    fn clear(&mut self);
    /// Applies a batch of events. Returns whether an event of the batch cleared the cache of the engine.
    fn apply(&mut self, payload: &[u8]) -> Result<bool, ApplyError>;
    /// Called after each message and each failure. The state of the stream says whether the known contents of
    /// the cache can be trusted.
    fn on_state(&mut self, state: StreamState);
    /// Called when a connection fails. The subscriber then connects again.
    fn on_error(&mut self, error: &ConnectionError);
}

/// Why a batch of KV events cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The payload is not a batch of events.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The engine announced more blocks than `kv_events.max_blocks`.
    #[error(transparent)]
    TooManyBlocks(#[from] TooManyBlocks),
}

/// Receives the KV events of one publisher and passes them to an [`EventSink`].
#[derive(Debug)]
pub struct Subscriber<S> {
    endpoint: ZmqEndpoint,
    replay_endpoint: Option<ZmqEndpoint>,
    topic: String,
    sink: S,
    stream: EventStream,
}

/// The connections to one publisher, until one of them fails.
struct Connections {
    live: Connection,
    replay: Option<Connection>,
    /// Whether the publisher answers pings, as libzmq does since 4.2.
    answers_pings: bool,
    /// The deadline for the answer to a ping or a replay request. If no answer is due, the time of the next
    /// ping, which an earlier message postpones.
    deadline: Instant,
    /// Time without a message after which the subscriber pings the publisher and asks for a replay of lost
    /// messages.
    idle_time: Duration,
    awaits_pong: bool,
    awaits_replay: bool,
}

enum Received {
    Published(Vec<Bytes>),
    Replayed(Vec<Bytes>),
    Pong,
    Deadline,
}

/// Shortest and longest pause between two attempts to connect.
const PAUSE_RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Time without a message after which the subscriber pings the publisher and requests a replay of
/// messages that may have been lost.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// The idle time right after the connection, in place of [`IDLE_TIME`]. libzmq applies a subscription some
/// milliseconds after its arrival, so the first messages can be lost. An early replay brings them.
const FIRST_IDLE_TIME: Duration = Duration::from_millis(200);
/// Time limit of the answer to the first ping.
const FIRST_PING_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of the answer to a ping, and of the next part of a replay.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const REPLAY_END: u64 = u64::MAX;

impl<S: EventSink> Subscriber<S> {
    /// Creates a subscriber to the messages whose topic begins with `topic`. `replay_endpoint`: the address of
    /// the replay socket. `None`: the publisher has no replay socket.
    pub fn new(
        endpoint: ZmqEndpoint,
        replay_endpoint: Option<ZmqEndpoint>,
        topic: String,
        sink: S,
    ) -> Self {
        Self {
            endpoint,
            replay_endpoint,
            topic,
            sink,
            stream: EventStream::default(),
        }
    }

    /// Receives events until the future is dropped.
    pub async fn run(&mut self) -> Infallible {
        let mut pause = PAUSE_RANGE.0;
        loop {
            let began = clock::now();
            let Err(error) = self.receive_until_failure().await;
            self.stream.on_disconnect();
            self.sink.on_state(self.stream.state());
            self.sink.on_error(&error);
            if clock::now().saturating_duration_since(began) > PAUSE_RANGE.1 {
                pause = PAUSE_RANGE.0;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_RANGE.1);
        }
    }

    async fn receive_until_failure(&mut self) -> Result<Infallible, ConnectionError> {
        let mut connections = self.connect().await?;
        let step = self.stream.on_connect(connections.replay.is_some());
        self.perform(step, &[], &mut connections).await?;
        loop {
            let (step, payload) = match connections.receive().await? {
                Received::Pong => continue,
                Received::Deadline => {
                    connections.on_deadline().await?;
                    (self.stream.on_idle(), Bytes::new())
                }
                Received::Published(parts) => {
                    let [_, number, payload] = &parts[..] else {
                        return Err(ProtocolError::Frame.into());
                    };
                    let number = number_of(number)?;
                    (
                        self.stream.on_published(number, xxh3_64(payload)),
                        payload.clone(),
                    )
                }
                Received::Replayed(parts) => {
                    // The replays of vLLM up to 0.22 have no topic part, so the number and the payload are
                    // taken from the end of the parts.
                    let [delimiter, .., number, payload] = &parts[..] else {
                        return Err(ProtocolError::Frame.into());
                    };
                    let number = number_of(number)?;
                    if !delimiter.is_empty() {
                        return Err(ProtocolError::Frame.into());
                    }
                    if number == REPLAY_END {
                        connections.awaits_replay = false;
                        connections.await_message();
                        (self.stream.on_replay_end(), Bytes::new())
                    } else {
                        (
                            self.stream.on_replayed(number, xxh3_64(payload)),
                            payload.clone(),
                        )
                    }
                }
            };
            self.perform(step, &payload, &mut connections).await?;
        }
    }

    async fn connect(&mut self) -> Result<Connections, ConnectionError> {
        let mut live = Connection::open(&self.endpoint, SocketType::Sub).await?;
        live.subscribe(&self.topic).await?;
        let mut replay = None;
        if let Some(endpoint) = &self.replay_endpoint {
            match Connection::open(endpoint, SocketType::Dealer).await {
                Ok(connection) => replay = Some(connection),
                Err(error) => self.sink.on_error(&error),
            }
        }
        let mut answers_pings = false;
        if replay.is_some() {
            // A publisher handles the subscription before the ping. So after the pong, the live connection
            // misses no message, and a replay has all earlier messages.
            live.ping().await?;
            let pong = async {
                while live.receive().await?.is_some() {}
                Ok::<_, ConnectionError>(())
            };
            if let Ok(answer) = timeout(FIRST_PING_TIMEOUT, pong).await {
                answer?;
                answers_pings = true;
            }
        }
        Ok(Connections::new(live, replay, answers_pings))
    }

    async fn perform(
        &mut self,
        step: StreamStep,
        payload: &[u8],
        connections: &mut Connections,
    ) -> Result<(), ConnectionError> {
        if step.clears {
            self.sink.clear();
        }
        if step.applies {
            match self.sink.apply(payload) {
                Ok(true) => self.stream.on_all_cleared(),
                Ok(false) => {}
                Err(_) => {
                    if self.stream.on_damage().clears {
                        self.sink.clear();
                    }
                }
            }
        }
        if let (Some(from), Some(replay)) = (step.replay_from, &mut connections.replay) {
            replay.send(&[&[], &from.to_be_bytes()]).await?;
            connections.awaits_replay = true;
            connections.deadline = clock::now() + ANSWER_TIMEOUT;
        }
        self.sink.on_state(self.stream.state());
        Ok(())
    }
}

impl Connections {
    fn new(live: Connection, replay: Option<Connection>, answers_pings: bool) -> Self {
        Self {
            live,
            replay,
            answers_pings,
            deadline: clock::now() + FIRST_IDLE_TIME,
            idle_time: FIRST_IDLE_TIME,
            awaits_pong: false,
            awaits_replay: false,
        }
    }

    /// The next message from the live connection or the replay connection, a pong, or the deadline.
    async fn receive(&mut self) -> Result<Received, ConnectionError> {
        let replayed = async {
            match &mut self.replay {
                Some(replay) => replay.receive().await,
                None => pending().await,
            }
        };
        let received = tokio::select! {
            published = self.live.receive() => published?.map_or(Received::Pong, Received::Published),
            replayed = replayed => replayed?.map_or(Received::Pong, Received::Replayed),
            () = sleep_until(self.deadline.into()) => return Ok(Received::Deadline),
        };
        match received {
            Received::Pong => self.awaits_pong = false,
            // Each replayed message extends the deadline for the next one.
            Received::Replayed(_) => self.deadline = clock::now() + ANSWER_TIMEOUT,
            _ => {}
        }
        self.await_message();
        Ok(received)
    }

    /// Sets the deadline for the next message, unless the answer to a ping or a replay is due.
    fn await_message(&mut self) {
        if !self.awaits_pong && !self.awaits_replay {
            self.deadline = clock::now() + self.idle_time;
        }
    }

    /// Handles the deadline. If an answer was due, the publisher is unresponsive. If none was due, the stream
    /// is idle, and the subscriber sends a ping.
    async fn on_deadline(&mut self) -> Result<(), ConnectionError> {
        if self.awaits_pong || self.awaits_replay {
            return Err(ConnectionError::Unresponsive);
        }
        self.idle_time = IDLE_TIME;
        self.await_message();
        if self.answers_pings {
            self.awaits_pong = true;
            self.deadline = clock::now() + ANSWER_TIMEOUT;
            return self.live.ping().await;
        }
        Ok(())
    }
}

pub(super) fn number_of(part: &[u8]) -> Result<u64, ProtocolError> {
    part.try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| ProtocolError::Frame)
}

#[cfg(test)]
#[path = "subscriber_tests.rs"]
pub(super) mod tests;
