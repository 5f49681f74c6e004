//! The gathered facts, before any check: the responses of backends, the state of the gateway, and
//! the response of the trace collector.

use crate::configuration::GatewaySettings;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use std::time::{Duration, Instant, SystemTime};
use tokenweir_core::address::BackendAddress;
use tokenweir_core::record::{ObservedResponse, Timings};

/// All facts.
#[derive(Debug, Default)]
pub struct DoctorFacts {
    /// The settings of the gateway; the defaults if no configuration is known.
    pub config: GatewaySettings,
    /// Whether a configuration is known.
    pub is_configured: bool,
    /// The backends.
    pub backends: Vec<BackendFacts>,
    /// The running gateway, if `--admin` names one.
    pub gateway: Option<Result<GatewayFacts, GatherError>>,
    /// The trace collector, if a configuration names one.
    pub collector: Option<CollectorFacts>,
}

/// The facts about one backend.
#[derive(Debug)]
pub struct BackendFacts {
    /// The name.
    pub id: String,
    /// The URL.
    pub url: BackendAddress,
    /// The key that was sent.
    pub key: TargetKey,
    /// `/health`.
    pub health: GatherResult,
    /// `/version`, requested with a request id.
    pub version: GatherResult,
    /// `/v1/models`.
    pub models: GatherResult,
    /// `/v1/models`, requested without a key. `None`: there is no key to omit.
    pub models_without_key: Option<GatherResult>,
    /// The metrics page.
    pub metrics: GatherResult,
    /// The status of an `OPTIONS` request, by path. `None`: no response.
    pub options: Vec<(&'static str, Option<StatusCode>)>,
    /// `/kv_event_sources`, requested without a key.
    pub event_sources: GatherResult,
    /// How long it keeps an idle connection open. `None`: not measured.
    pub idle: Option<IdleConnection>,
    /// The result of the probe request. `None`: none was sent.
    pub probe: Option<Result<StreamProbe, GatherError>>,
}

/// The key for a server.
#[derive(Debug, Clone)]
pub enum TargetKey {
    /// No key.
    None,
    /// The `Authorization` header.
    Known(HeaderValue),
    /// The configuration names a key that cannot be read, for this reason.
    Missing(String),
}

/// The response, or why there was none.
pub type GatherResult = Result<GatheredResponse, GatherError>;

/// A complete response.
#[derive(Debug, Clone)]
pub struct GatheredResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The local wall clock when the request was sent, and when the response head had arrived.
    pub clock: [SystemTime; 2],
    /// Time from the request to the last byte of the response.
    pub took: Duration,
}

/// Why there was no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatherError {
    /// The connection could not be opened.
    Connect(String),
    /// The TLS handshake failed.
    Tls(String),
    /// The connection was closed before the end of the response.
    Closed(String),
    /// The response was not HTTP.
    NotHttp(String),
    /// No response within this time limit.
    Timeout(Duration),
    /// The response was larger than the limit.
    TooLarge,
    /// Not requested, because an earlier request failed.
    NotAttempted,
}

/// The state of a connection that was left idle after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleConnection {
    /// The backend closed it after this time.
    Closed(Duration),
    /// It was still open after this time.
    Open(Duration),
}

/// The result of a small streaming request.
#[derive(Debug)]
pub struct StreamProbe {
    /// The path of the request.
    pub path: &'static str,
    /// The status of the response.
    pub status: StatusCode,
    /// The headers of the response.
    pub headers: HeaderMap,
    /// The observed properties of the stream.
    pub observed: ObservedResponse,
    /// The times of the exchange.
    pub timings: Timings,
    /// The arrival time of each event with output.
    pub arrivals: Vec<Instant>,
    /// The first bytes of the body, as text.
    pub excerpt: String,
    /// The time limit after which the stream was aborted, if it was.
    pub gave_up_after: Option<Duration>,
}

/// The facts about a running gateway.
#[derive(Debug)]
pub struct GatewayFacts {
    /// The URL of its admin listener.
    pub url: BackendAddress,
    /// The document of `/status`, or why it cannot be read.
    pub status: Result<serde_json::Value, String>,
    /// Why its configuration could not be parsed, if it could not.
    pub config_problem: Option<String>,
}

/// The facts about the trace collector.
#[derive(Debug)]
pub struct CollectorFacts {
    /// The endpoint.
    pub endpoint: String,
    /// The OTLP protocol.
    pub protocol: &'static str,
    /// Why it did not accept an empty message, if it did not.
    pub problem: Option<String>,
}

impl std::fmt::Display for GatherError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(reason) => write!(f, "cannot connect: {reason}"),
            Self::Tls(reason) => write!(f, "{reason}"),
            Self::Closed(reason) => write!(f, "closed before the end of the response: {reason}"),
            Self::NotHttp(reason) => write!(f, "not HTTP: {reason}"),
            Self::Timeout(limit) => write!(f, "no answer within {limit:?}"),
            Self::TooLarge => f.write_str("the response is too large"),
            Self::NotAttempted => f.write_str("not requested"),
        }
    }
}
