//! The gathered facts that the checks examine: the responses of backends, the state of the gateway, and the
//! response of the trace collector.

use crate::configuration::GatewaySettings;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use std::time::{Duration, Instant, SystemTime};
use tokenweir_api::StatusCheck;
use tokenweir_engine::address::BackendAddress;
use tokenweir_request::record::{ObservedResponse, Timings};

/// All facts that the doctor gathers before the checks run.
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
pub struct DoctorFacts {
    /// The settings of the gateway, or the default settings if no configuration is known.
    pub config: GatewaySettings,
    /// Whether a configuration is known.
    pub is_configured: bool,
    /// The responses of each backend, in the order of the configuration.
    pub backends: Vec<BackendFacts>,
    /// The facts about the running gateway at the URL of the option `--admin`, or why it did not respond.
    /// `None`: the option was not given.
    pub gateway: Option<Result<GatewayFacts, GatherError>>,
    /// The reasons why a gateway does not start with the configuration file on this machine, such as a
    /// missing certificate.
    pub start_problems: Vec<String>,
    /// The facts about the trace collector. `None`: no configuration names a collector.
    pub collector: Option<CollectorFacts>,
    /// The checks of the options. They read the status of the gateway.
    pub status_checks: Vec<StatusCheck>,
}

/// The responses of one backend to the requests of the doctor.
#[derive(Debug)]
pub struct BackendFacts {
    /// The name of the backend.
    pub id: String,
    /// The URL from which the responses come.
    pub url: BackendAddress,
    /// The API key for the requests to the backend.
    pub key: TargetKey,
    /// The response to `GET /health`.
    pub health: GatherResult,
    /// The response to `GET /version`, which was requested with an `x-request-id` header.
    pub version: GatherResult,
    /// The response to `GET /v1/models`.
    pub models: GatherResult,
    /// The response to `GET /v1/models` without a key. `None`: this request was not sent, because the other
    /// requests had no key either.
    pub models_without_key: Option<GatherResult>,
    /// The response to the request for the metrics page.
    pub metrics: GatherResult,
    /// The tested paths, each with the status of the response to an `OPTIONS` request. `None`: no response
    /// arrived.
    pub options: Vec<(&'static str, Option<StatusCode>)>,
    /// The response to `GET /kv_event_sources` without a key.
    pub event_sources: GatherResult,
    /// Whether a connection to the first publisher of KV events could be opened. `None`: the backend lists no
    /// publisher.
    pub publisher_answers: Option<bool>,
    /// How long the backend keeps an idle connection open. `None`: this was not measured.
    pub idle: Option<IdleConnection>,
    /// The result of the probe, a small streaming request. `None`: no probe was sent.
    pub probe: Option<Result<StreamProbe, GatherError>>,
}

/// The API key or token for a server.
#[derive(Debug, Clone)]
pub enum TargetKey {
    /// No key is configured.
    None,
    /// The value of the `Authorization` header.
    Known(HeaderValue),
    /// The key cannot be read, for the stated reason. Requests are sent without a key.
    Missing(String),
}

/// The response to a request, or why there was no response.
pub type GatherResult = Result<GatheredResponse, GatherError>;

/// A complete response to a request of the doctor.
#[derive(Debug, Clone)]
pub struct GatheredResponse {
    /// The HTTP status of the response.
    pub status: StatusCode,
    /// The headers of the response.
    pub headers: HeaderMap,
    /// The body of the response.
    pub body: Bytes,
    /// The local wall-clock time before the request was sent.
    pub sent_at: SystemTime,
    /// The local wall-clock time after the response head arrived.
    pub received_at: SystemTime,
    /// Time from the request to the last byte of the response.
    pub took: Duration,
}

/// Why a request of the doctor got no complete response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// The connection could not be opened.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The TLS handshake failed.
    #[error("{0}")]
    Tls(String),
    /// The connection was closed before the end of the response.
    #[error("closed before the end of the response: {0}")]
    Closed(String),
    /// The response was not HTTP, for example because the port belongs to another protocol.
    #[error("not HTTP: {0}")]
    NotHttp(String),
    /// No complete response arrived within this time limit.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The response body was larger than the limit of the doctor.
    #[error("the response is too large")]
    TooLarge,
    /// The doctor did not send the request: an earlier request to the server failed, or the check does not
    /// apply to the server.
    #[error("not requested")]
    NotAttempted,
}

/// The state of a connection after an idle time that follows a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleConnection {
    /// The backend closed the connection after this idle time.
    Closed(Duration),
    /// The connection was still open when the measurement ended after this idle time.
    Open(Duration),
}

/// The response to the probe, a small streaming request.
#[derive(Debug)]
pub struct StreamProbe {
    /// The path of the request.
    pub path: &'static str,
    /// The status of the response.
    pub status: StatusCode,
    /// The headers of the response.
    pub headers: HeaderMap,
    /// The properties of the stream, as the gateway's observer of responses reads them.
    pub observed: ObservedResponse,
    /// The times of the request and the response.
    pub timings: Timings,
    /// The arrival time of each event with output, in order.
    pub arrivals: Vec<Instant>,
    /// The first bytes of the body as text, for messages.
    pub excerpt: String,
    /// The time limit at which the stream was aborted. `None`: the stream was not aborted.
    pub gave_up_after: Option<Duration>,
}

/// The facts about a running gateway.
#[derive(Debug)]
pub struct GatewayFacts {
    /// The URL of the admin listener of the gateway.
    pub url: BackendAddress,
    /// The JSON document of `/status`, or why the document cannot be read.
    pub status: Result<serde_json::Value, String>,
    /// Why the configuration of the gateway could not be parsed. `None`: parsing succeeded.
    pub config_problem: Option<String>,
}

/// The facts about the trace collector.
#[derive(Debug)]
pub struct CollectorFacts {
    /// The URL of the trace collector.
    pub endpoint: String,
    /// The OTLP protocol: `grpc` or `http/protobuf`.
    pub protocol: &'static str,
    /// Why the collector did not accept an empty export request. `None`: the collector accepted it.
    pub problem: Option<String>,
}
