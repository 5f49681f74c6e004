//! Snapshots of open streams, for the admin API.

use crate::record::{ClientIdentity, ModelLabel, RequestRecord};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::headers::RequestId;
use tokenweir_protocol::named_enum;

/// Identity of a stream. It contains no part of a prompt or a response.
#[derive(Debug, Clone)]
pub struct StreamInfo {
    /// The `x-request-id` of the request.
    pub request_id: RequestId,
    /// The model, as the label value in metrics.
    pub model: ModelLabel,
    /// The backend that sends the stream. `None`: not known.
    pub backend: Option<BackendId>,
    /// The client's identity, if it authenticated with a key.
    pub caller: Option<Arc<ClientIdentity>>,
    /// The address at the other end of the connection.
    pub client: IpAddr,
    /// Estimated number of prompt tokens. 0: unknown.
    pub prompt_tokens: u64,
    /// When the request head was read.
    pub accepted: Instant,
}

named_enum! {
    /// The present activity of an open stream.
    #[derive(PartialOrd, Ord)]
    pub enum StreamPhase {
        /// The response head has arrived, but no output. The request waits in the queue of the engine, or the
        /// engine computes its prompt. Engines do not report which.
        NoOutput = "no_output",
        /// Output has arrived, and more can follow.
        Decode = "decode",
        /// The backend has sent no output for longer than its stall threshold.
        Stalled = "stalled",
        /// The client does not read data that has arrived.
        WriteStalled = "write_stalled",
        /// The last event has arrived, but not the end of the body.
        Closing = "closing",
    }
}

/// The values of an open stream when the snapshot was taken.
#[derive(Debug, Clone)]
pub struct OpenStream {
    /// Sequence number of the stream since the start of the gateway, from 0.
    pub number: u64,
    /// Request, model, backend and client.
    pub subject: StreamInfo,
    /// The present activity of the stream.
    pub phase: StreamPhase,
    /// Tokens so far. An event counts with its reported token count. Without one, it counts as one token.
    pub tokens: u64,
    /// Time since the last output. `None`: no output has arrived yet, or the last event has
    /// arrived.
    pub since_last_output: Option<Duration>,
}

/// All open streams at one time, for the admin listener.
#[derive(Debug, Clone, Default)]
pub struct OpenStreamsSnapshot {
    /// Number of streams that have begun and not ended.
    pub count: usize,
    /// Number of open streams by phase.
    pub phases: BTreeMap<StreamPhase, usize>,
    /// Tokens of all open streams so far.
    pub tokens: u64,
    /// Number of streams without output for longer than
    /// [`SlowLimits::ttft`](crate::record::SlowLimits::ttft).
    pub late_outputs: usize,
    /// Number of streams that have had only reasoning for longer than
    /// [`SlowLimits::first_answer`](crate::record::SlowLimits::first_answer).
    pub late_answers: usize,
    /// The oldest open streams, in the order in which their response heads arrived.
    pub oldest: Vec<OpenStream>,
}

impl StreamInfo {
    /// The identity of the stream that answers the request of `record`.
    pub(in crate::observe) fn from_record(record: &RequestRecord) -> Self {
        Self {
            request_id: record.request_id.clone(),
            model: record.model.clone(),
            backend: record.backend().cloned(),
            caller: record.caller.clone(),
            client: record.client,
            prompt_tokens: record.decision.as_ref().map_or(0, |decision| {
                decision.selected_candidate().prompt.round() as u64
            }),
            accepted: record.timings.accepted,
        }
    }
}
