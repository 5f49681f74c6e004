//! Attempts to serve a request on a backend.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::named_enum;
use tokenweir_routing::resilience::FailureKind;

/// One attempt to serve the request on one backend.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The backend.
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
}

// === impl Attempt ===

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
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum FailoverDenialReason {
        /// The response had begun, or another backend would have failed in the same way.
        NotRetryable = "not_retryable",
        /// The request may have side effects beyond its response.
        SideEffects = "side_effects",
        /// The request may have crashed several backends.
        PoisonRequest = "poison",
        /// The maximum number of attempts was reached.
        MaxAttempts = "max_attempts",
        /// The retry budget was exhausted.
        RetryBudget = "retry_budget",
        /// There was no other backend.
        NoOtherBackend = "no_other_backend",
    }
}
