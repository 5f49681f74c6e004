//! What was gathered before anything is judged: the answers of replicas as they came, what the
//! gateway says of itself, and whether the collector took what it was sent.

use crate::configuration::Configuration;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use std::time::{Duration, Instant, SystemTime};
use tokenweir_core::address::Address;
use tokenweir_core::record::{Observed, Timings};

/// Everything.
#[derive(Debug, Default)]
pub struct Facts {
    /// The settings of the gateway; the defaults if no configuration was given.
    pub config: Configuration,
    /// Whether somebody has configured it.
    pub is_configured: bool,
    /// The replicas.
    pub replicas: Vec<Replica>,
    /// The gateway that runs, if one was named.
    pub gateway: Option<Result<Gateway, Silence>>,
    /// The collector of spans, if there is one.
    pub collector: Option<Collector>,
}

/// One replica, as it was found.
#[derive(Debug)]
pub struct Replica {
    /// Its name.
    pub id: String,
    /// Where it is.
    pub url: Address,
    /// The key that it was sent.
    pub key: Key,
    /// `/health`.
    pub health: Asked,
    /// `/version`, asked with a request id.
    pub version: Asked,
    /// `/v1/models`.
    pub models: Asked,
    /// The same without a key, if there is one.
    pub models_without_key: Option<Asked>,
    /// Its page of metrics.
    pub metrics: Asked,
    /// What `OPTIONS` was answered, by path.
    pub options: Vec<(&'static str, Option<StatusCode>)>,
    /// `/kv_event_sources`, without a key.
    pub event_sources: Asked,
    /// How long it keeps a connection that is not used. `None`: it was not tried.
    pub idle: Option<Idle>,
    /// What came of a small request. `None`: none was sent.
    pub probe: Option<Result<Probe, Silence>>,
}

/// A key for a replica.
#[derive(Debug, Clone)]
pub enum Key {
    /// There is none.
    None,
    /// The `Authorization` header.
    Known(HeaderValue),
    /// The configuration names one that is not here, for this reason.
    Missing(String),
}

/// An answer, or why there was none.
pub type Asked = Result<Answer, Silence>;

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// This machine's clock when it was asked for, and when its head had come.
    pub clock: [SystemTime; 2],
    /// From the question to the last byte.
    pub took: Duration,
}

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Silence {
    /// No connection.
    Connect(String),
    /// A connection, and no agreement on TLS.
    Tls(String),
    /// The connection closed before the answer was whole.
    Closed(String),
    /// What came was not HTTP.
    NotHttp(String),
    /// Not in time.
    Timeout(Duration),
    /// More than would be read.
    TooLarge,
    /// It was not asked, since it had not answered before.
    NotAsked,
}

/// What became of a connection that was left idle after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// The replica closed it after this time.
    Closed(Duration),
    /// It was still open after this time.
    Open(Duration),
}

/// What came of a small streaming request.
#[derive(Debug)]
pub struct Probe {
    /// The path that it was sent to.
    pub path: &'static str,
    /// The status of the answer.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// What was seen of the stream.
    pub observed: Observed,
    /// Its moments.
    pub timings: Timings,
    /// When each event with output had arrived.
    pub arrivals: Vec<Instant>,
    /// Its beginning.
    pub excerpt: String,
    /// It was given up after this time.
    pub given_up: Option<Duration>,
}

/// What a running gateway says.
#[derive(Debug)]
pub struct Gateway {
    /// Its admin port.
    pub url: Address,
    /// What it says of itself: `/status`.
    pub status: Result<serde_json::Value, String>,
    /// Why its configuration is not known, if it is not.
    pub config_problem: Option<String>,
}

/// The collector of spans.
#[derive(Debug)]
pub struct Collector {
    /// Where it is.
    pub endpoint: String,
    /// How it is spoken to.
    pub protocol: &'static str,
    /// Why it did not take an empty message, if it did not.
    pub problem: Option<String>,
}

impl std::fmt::Display for Silence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(reason) => write!(f, "cannot connect: {reason}"),
            Self::Tls(reason) => write!(f, "{reason}"),
            Self::Closed(reason) => write!(f, "closed before the end of the answer: {reason}"),
            Self::NotHttp(reason) => write!(f, "not HTTP: {reason}"),
            Self::Timeout(limit) => write!(f, "no answer within {limit:?}"),
            Self::TooLarge => f.write_str("the answer is too large"),
            Self::NotAsked => f.write_str("not asked"),
        }
    }
}
