//! The HTTP client for backends: HTTP/1.1 on pooled connections, without Nagle's delay.
//!
//! Its errors tell three cases apart: a backend that accepts no connection, a pooled connection that
//! the backend closed while the request was on its way ([`SendError::Stale`]), and a backend that
//! closed a connection after it can have read the request.

use crate::connection::{Connection, ReplicaBody};
use crate::descriptors::{Descriptors, WatchDescriptor};
use crate::idle::Idle;
use crate::shortage;
use crate::tls::{Alpn, Connector, Outbound, Stream};
use bytes::Bytes;
use http::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::units;
use tower::ServiceExt;

/// The client. Clones are the same.
#[derive(Debug, Clone)]
pub struct Client {
    connector: Connector,
    idle: Duration,
    header_timeout: Duration,
    /// The file descriptors that connections may have, shared with those of clients.
    descriptors: Descriptors,
}

/// The limits of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Longest wait for a connection.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub connect: Duration,
    /// Longest wait for a response head. vLLM sends that of a whole answer when it is generated.
    #[serde(rename = "response_headers", with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub headers: Duration,
    /// Longest wait for the first output of a stream, from the head of its request on. `None`: no
    /// limit. A shorter one of the client wins.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub first_output: Option<Duration>,
    /// How long an unused connection is kept. Keep it below the replicas' own limit: vLLM closes
    /// after 5 s.
    #[serde(rename = "idle_connection", with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub idle: Duration,
}

/// The connection that a request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// A pooled connection, or a new one if the pool has none that is open.
    Pool,
    /// A new connection. A request whose pooled connection was closed is sent again in this way, so
    /// that it cannot meet a second connection which the backend has closed.
    NewConnection {
        /// The pooled connection closed after the whole request had been written.
        after_written: bool,
    },
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The gateway has no file descriptor, memory or port left for a connection. This says nothing of
    /// the backend.
    #[error("the gateway is out of resources for a connection: {0}")]
    Exhausted(String),
    /// A pooled connection closed as the request was sent, without a byte of an answer. The close
    /// crossed the request on the wire, so the backend has most likely not read the request.
    #[error("a pooled connection was closed as the request was sent")]
    Stale {
        /// The whole request had been written. If it had not, the backend cannot have executed it.
        was_written: bool,
    },
    /// The connection closed before the response head. The backend may have executed the request.
    #[error("closed before the response head: {0}")]
    Closed(String),
    /// What came was not HTTP.
    #[error("not HTTP: {0}")]
    Garbage(String),
    /// Nothing came in time.
    #[error("no response head within {0:?}")]
    Timeout(Duration),
}

impl SendError {
    /// One word of a closed set, for records.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect_error",
            Self::Exhausted(_) => "gateway_exhausted",
            Self::Stale { .. } => "stale",
            Self::Closed(_) => "connection_reset",
            Self::Garbage(_) => "bad_response",
            Self::Timeout(_) => "timeout",
        }
    }
}

// === impl Limits ===

impl Default for Limits {
    /// 2 s to connect, 10 min for a response head and for the first output, 3 s of idleness.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            headers: Duration::from_mins(10),
            first_output: Some(Duration::from_mins(10)),
            idle: Duration::from_secs(3),
        }
    }
}

// === impl Client ===

impl Client {
    /// A client with these limits, which believes the authorities of this machine.
    pub fn new(limits: Limits) -> Self {
        Self::with_tls(limits, Outbound::of_machine(Alpn::Http1))
    }

    /// A client that is somebody for a replica, or believes somebody else.
    pub fn with_tls(limits: Limits, outbound: Arc<Outbound>) -> Self {
        let connector = Connector::new(outbound, limits.connect);
        let descriptors = Descriptors::default();
        Self { connector, idle: limits.idle, header_timeout: limits.headers, descriptors }
    }

    /// Takes the file descriptors of connections from those that are shared with others.
    #[must_use]
    pub fn with_descriptors(self, descriptors: Descriptors) -> Self {
        Self { descriptors, ..self }
    }

    /// A file descriptor for a connection that watches a backend, if one becomes free within
    /// `patience`.
    pub async fn watch_descriptor(&self, patience: Duration) -> Result<WatchDescriptor, SendError> {
        let descriptor = self.descriptors.take_for_watching(patience).await;
        descriptor.ok_or_else(|| exhausted(&NO_DESCRIPTOR))
    }

    /// Whether a connection that watches a backend may stay open until the next look.
    pub fn keeps_watching(&self) -> bool {
        self.descriptors.has_room_for_watching()
    }

    /// A connection that no request of a client uses.
    pub async fn connect(&self, to: Uri) -> Result<TokioIo<Stream>, SendError> {
        let connecting = self.connector.clone().oneshot(to);
        connecting.await.map_err(|error| {
            let cause = innermost(&error);
            match shortage::of(cause) {
                Some(problem) => exhausted(&problem),
                None => SendError::Connect(cause.to_string()),
            }
        })
    }

    /// How long an unused connection is kept.
    pub fn idle(&self) -> Duration {
        self.idle
    }

    /// Sends a request with an absolute URI over a pooled or a new connection, and waits for the
    /// response head. Dropping the future closes the connection.
    pub async fn send(
        &self,
        idle: &Idle,
        request: Request<Bytes>,
    ) -> Result<Response<ReplicaBody>, SendError> {
        self.send_within(self.header_timeout, idle, request).await
    }

    /// [`send`](Self::send) with another limit for the head.
    pub async fn send_within(
        &self,
        limit: Duration,
        idle: &Idle,
        request: Request<Bytes>,
    ) -> Result<Response<ReplicaBody>, SendError> {
        self.send_via(Via::Pool, Some(limit), idle, request).await
    }

    /// [`send`](Self::send) over a connection of this kind. Without a `limit`, the client's own holds.
    pub async fn send_via(
        &self,
        via: Via,
        limit: Option<Duration>,
        idle: &Idle,
        request: Request<Bytes>,
    ) -> Result<Response<ReplicaBody>, SendError> {
        let limit = limit.unwrap_or(self.header_timeout);
        let sending = async {
            let pooled = match via {
                Via::Pool => idle.take(self.idle, clock::now()),
                Via::NewConnection { .. } => None,
            };
            let connection = if let Some(connection) = pooled {
                connection
            } else {
                let descriptor = self.descriptors.take();
                let descriptor = descriptor.ok_or_else(|| exhausted(&NO_DESCRIPTOR))?;
                let stream = self.connect(request.uri().clone()).await?;
                Connection::new(stream.into_inner(), descriptor)
            };
            connection.send(request, idle).await
        };
        tokio::time::timeout(limit, sending).await.map_err(|_| SendError::Timeout(limit))?
    }
}

/// Why there is no connection although the limits are known.
const NO_DESCRIPTOR: &str = "all file descriptors for connections are in use; raise the limit of \
                             open files (LimitNOFILE, ulimit -n)";

fn exhausted(problem: &impl ToString) -> SendError {
    SendError::Exhausted(problem.to_string())
}

/// The cause that says most: the chain above it only repeats that sending failed.
fn innermost<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}
