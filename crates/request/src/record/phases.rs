//! The phases of a request: their names, and how long each took.

use std::sync::OnceLock;
use std::time::Duration;
use tokenweir_protocol::named_enum;

named_enum! {
    /// A part of the time of a request.
    pub enum RequestPhase {
        /// Time in the admission queue of the gateway.
        GatewayQueue = "gateway_queue",
        /// Time of the gateway itself, from the end of the request body until it sends the last attempt. The
        /// admission queue, failed attempts, and requests that the gateway made before an attempt do not count.
        Gateway = "gateway",
        /// Time in the failed attempts before the last one.
        FailedAttempts = "failed_attempts",
        /// Time in requests before the attempts, with which the gateway let another backend compute the prompt.
        RemotePrefill = "prefill_leg",
        /// Time of the network to the engine and of its API server: sent → response head. Known only if the
        /// engine sends the head before it computes anything.
        FrontEnd = "front_end",
        /// The request waits in the queue of the engine.
        EngineQueue = "queue",
        /// Prefill: scheduled → first token.
        Prefill = "prefill",
        /// (Sent → first output) − front end − engine queue − prefill.
        Unexplained = "unexplained",
        /// Decode: first output → last output.
        Decode = "decode",
    }
}

/// A phase with its duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseDuration {
    /// The kind of the phase.
    pub phase: RequestPhase,
    /// Time that the request spent in the phase.
    pub took: Duration,
    /// Whether the duration is an estimate, derived from the times of other requests.
    pub is_estimated: bool,
}

/// The phases of one request whose durations are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestPhases([Option<PhaseDuration>; RequestPhase::ALL.len()]);

/// The phases of a request that has ended, computed at their first use.
#[derive(Debug, Clone, Default)]
pub struct FinishedPhases(OnceLock<Box<RequestPhases>>);

impl RequestPhase {
    /// The inference span's attribute for the duration of the phase. The names are static, because building
    /// them for each span would cost 10 % of the instructions of a span.
    pub const fn span_attribute(self) -> &'static str {
        match self {
            Self::GatewayQueue => "tokenweir.phase.gateway_queue",
            Self::Gateway => "tokenweir.phase.gateway",
            Self::FailedAttempts => "tokenweir.phase.failed_attempts",
            Self::RemotePrefill => "tokenweir.phase.prefill_leg",
            Self::FrontEnd => "tokenweir.phase.front_end",
            Self::EngineQueue => "tokenweir.phase.queue",
            Self::Prefill => "tokenweir.phase.prefill",
            Self::Unexplained => "tokenweir.phase.unexplained",
            Self::Decode => "tokenweir.phase.decode",
        }
    }
}

impl RequestPhases {
    /// One phase. `None`: its duration is unknown.
    pub fn get(&self, phase: RequestPhase) -> Option<PhaseDuration> {
        self.0[phase as usize]
    }

    /// The phases with a known duration, in order of time.
    pub fn iter(&self) -> impl Iterator<Item = PhaseDuration> + '_ {
        self.0.iter().flatten().copied()
    }

    pub(super) fn set(
        &mut self,
        phase: RequestPhase,
        duration: Option<Duration>,
        is_estimated: bool,
    ) {
        self.0[phase as usize] = duration.map(|took| PhaseDuration {
            phase,
            took,
            is_estimated,
        });
    }
}

impl FinishedPhases {
    pub(super) fn get_or_determine(
        &self,
        determine: impl FnOnce() -> RequestPhases,
    ) -> &RequestPhases {
        self.0.get_or_init(|| Box::new(determine()))
    }
}
