//! The causes of slow requests, a closed set, and the limits above which a request is slow.

use std::time::Duration;
use tokenweir_protocol::units;
use tokenweir_protocol::{named_enum, settings};

named_enum! {
    /// The cause of a slow request.
    #[derive(Hash)]
    pub enum SlowCause {
        /// An attempt failed on one backend, and the request was tried on another.
        Retry = "retry",
        /// The request waited in the admission queue.
        GatewayQueue = "gateway_queue",
        /// The request waited in the admission queue, because no backend could serve its model.
        NoBackend = "no_backend",
        /// The gateway needed long for its own work.
        Gateway = "gateway",
        /// The request waited in the engine's queue.
        EngineQueue = "engine_queue",
        /// The prefill of the prompt took long.
        LongPrompt = "long_prompt",
        /// The model reasoned for long before the first output that is not reasoning.
        Reasoning = "reasoning",
        /// The backend sent no output, and neither its queue nor the prompt explains the wait. The
        /// engine or the host made no progress, or the backend does not report the cause.
        Unresponsive = "unresponsive",
        /// The engine evicted its KV cache for other requests and recomputed it.
        Preempted = "preempted",
        /// The engine stalled in the middle of the response.
        Stalled = "stalled",
        /// The engine generated tokens slowly: a large batch, or long contexts.
        SlowDecode = "slow_decode",
        /// The prefill or the decode was slow while a GPU of the backend lowered its clock because of a cooling
        /// or power supply fault.
        GpuThrottled = "gpu_throttled",
        /// The client was slow to send the request or to read the response.
        SlowClient = "slow_reader",
    }
}

settings! {
    /// Limits above which a request is slow. One exceeded limit suffices.
    #[derive(Copy, Eq)]
    pub struct SlowLimits {
        /// Time to first token of a stream.
        #[serde(with = "units::Duration")]
        pub ttft: Duration,
        /// Time to the first output that is not reasoning, of a stream with reasoning.
        #[serde(with = "units::Duration")]
        pub first_answer: Duration,
        /// Time per output token of a stream.
        #[serde(with = "units::Duration")]
        pub tpot: Duration,
        /// Duration of a response that is not a stream.
        #[serde(with = "units::Duration")]
        pub duration: Duration,
        /// Time in which the client does not read the response.
        #[serde(with = "units::Duration")]
        pub write_stall: Duration,
    }
}

impl Default for SlowLimits {
    /// The default limits: 2 s to the first token, 10 s to the first answer (users leave a page that shows no
    /// answer for longer: Nielsen, Response Times), 200 ms per token, 60 s for a response that is not a stream,
    /// and 1 s of write stalls.
    fn default() -> Self {
        Self {
            ttft: Duration::from_secs(2),
            first_answer: Duration::from_secs(10),
            tpot: Duration::from_millis(200),
            duration: Duration::from_mins(1),
            write_stall: Duration::from_secs(1),
        }
    }
}

impl SlowCause {
    /// The activity that took the time, in words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Retry => "an attempt failed, and the request was sent again",
            Self::GatewayQueue => "the request waited in the admission queue of the gateway",
            Self::NoBackend => "the request waited until a backend could serve its model",
            Self::Gateway => "the gateway itself was slow",
            Self::EngineQueue => "the request waited in the queue of the engine",
            Self::LongPrompt => "the engine computed a long prompt",
            Self::Reasoning => "the model reasoned for long before its answer",
            Self::Unresponsive => {
                "the backend sent no output, and neither its queue nor the prompt explains the wait"
            }
            Self::Preempted => "the KV cache was full: the engine computed the request again",
            Self::Stalled => "the output stopped in the middle of the response",
            Self::SlowDecode => "the engine generated tokens slowly",
            Self::GpuThrottled => "a GPU lowered its clock because of heat or power",
            Self::SlowClient => "the client was slow to send the request or to read the response",
        }
    }

    /// Whether this cause delays only output after the first. `false`: the cause can act before the first
    /// output, or is reasoning.
    pub const fn is_after_first_output(self) -> bool {
        matches!(self, Self::Preempted | Self::Stalled | Self::SlowDecode)
    }
}
