//! A stream as others see it while it is open.

use crate::headers::RequestId;
use crate::record::{BackendId, Caller, ModelLabel, RequestRecord};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whose stream it is. Nothing of a prompt or an answer.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The `x-request-id`.
    pub request_id: RequestId,
    /// The model as a label.
    pub model: ModelLabel,
    /// The replica.
    pub backend: Option<BackendId>,
    /// Whose key it came with.
    pub caller: Option<Arc<Caller>>,
    /// When the request head was read.
    pub accepted: Instant,
}

/// What a stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Its head has come, and no output.
    Prefill,
    /// Output comes.
    Decode,
    /// The replica has fallen silent for too long.
    Stalled,
    /// The client does not take what has come.
    Held,
    /// Its last event has come, and not the end of its body.
    Ending,
}

/// One stream at one moment.
#[derive(Debug, Clone)]
pub struct OpenStream {
    /// How many had been opened before.
    pub number: u64,
    /// Whose it is.
    pub subject: Subject,
    /// What it does.
    pub phase: Phase,
    /// Tokens so far, by the number of events where they do not tell.
    pub tokens: u64,
    /// How long ago the last output came. `None`: none has come, or no more has to.
    pub silence: Option<Duration>,
}

/// All streams at one moment.
#[derive(Debug, Clone, Default)]
pub struct Glance {
    /// How many are open.
    pub count: usize,
    /// How many do what.
    pub phases: BTreeMap<Phase, usize>,
    /// Tokens of all of them so far.
    pub tokens: u64,
    /// Those that have been open longest, in the order in which their heads came.
    pub oldest: Vec<OpenStream>,
}

// === impl Subject, Phase ===

impl Subject {
    /// What of a record others may see before it is complete.
    pub(super) fn of(record: &RequestRecord) -> Self {
        Self {
            request_id: record.request_id.clone(),
            model: record.model.clone(),
            backend: record.backend().cloned(),
            caller: record.caller.clone(),
            accepted: record.timings.accepted,
        }
    }
}

impl Phase {
    /// One word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Stalled => "stalled",
            Self::Held => "held",
            Self::Ending => "ending",
        }
    }
}
