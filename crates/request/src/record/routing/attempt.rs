//! Attempts to serve a request on a backend.

use crate::record::request::ShortName;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::named_enum;
use tokenweir_protocol::openai::EngineError;
use tokenweir_routing::resilience::FailureKind;

/// One attempt to serve the request on one backend.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The backend that got the request.
    pub backend: BackendId,
    /// Host and port of the backend.
    pub address: (Arc<str>, u16),
    /// The kind of the backend's engine, in the terms of `gen_ai.provider.name` in the OpenTelemetry GenAI
    /// conventions.
    pub provider: &'static str,
    /// Id of the gateway's span of the attempt. The engine's span has this span as its parent.
    pub span_id: u64,
    /// When the request was sent.
    pub started: Instant,
    /// When the attempt failed, or the response ended. `None`: the attempt has not ended.
    pub ended: Option<Instant>,
    /// HTTP status of the backend's response to this attempt. `None`: the gateway received no
    /// response head.
    pub status: Option<u16>,
    /// Why the attempt failed, from a closed set. `None`: the attempt did not fail.
    pub failure: Option<&'static str>,
    /// The topic of the error that the engine reported in its response. `None`: unknown, or no error.
    pub engine_error: Option<EngineError>,
    /// The proxy that made an error response. `None`: the engine made it, or there is none.
    pub proxy: Option<ErrorSource>,
}

/// The information in an error response beyond its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorSource {
    /// A proxy between the gateway and the engine made it, with this name of a server. `None`: it has no name.
    Proxy(Option<ShortName>),
    /// The engine itself made the error response.
    Engine(EngineError),
}

/// The words for each error of a proxy.
pub const BY_PROXY: &str = "by a proxy in front of the engines";

impl fmt::Display for ErrorSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy(Some(name)) => write!(f, "{BY_PROXY} (server: {name}), not by an engine"),
            Self::Proxy(None) => write!(f, "{BY_PROXY}, not by an engine"),
            Self::Engine(error) => write!(f, "by engines: {}", error.as_str()),
        }
    }
}

impl Attempt {
    /// Time from sending the request to the failure of the attempt or the end of the response. `None`: the
    /// attempt has not ended.
    pub fn took(&self) -> Option<Duration> {
        Some(self.ended?.saturating_duration_since(self.started))
    }

    /// The kind of the failure. `None`: the attempt did not fail, or the client ended it.
    pub fn failure_kind(&self) -> Option<FailureKind> {
        FailureKind::ALL
            .into_iter()
            .find(|kind| self.failure == Some(kind.as_str()))
    }
}

named_enum! {
    /// Why a failed request was not tried on another backend.
    #[derive(Hash)]
    pub enum FailoverDenialReason {
        /// The response had begun, or another backend would have failed in the same way.
        NotRetryable = "not_retryable",
        /// The request may have side effects beyond its response.
        SideEffects = "side_effects",
        /// The request may have crashed several backends.
        PoisonRequest = "poison",
        /// The maximum number of attempts was reached.
        MaxAttempts = "max_attempts",
        /// Retries had used up the budget.
        RetryBudget = "retry_budget",
        /// All backends of the model were tried or unavailable.
        NoOtherBackend = "no_other_backend",
    }
}
