//! The state of the gateway at one moment, gathered when somebody asks: what gauges, `/status`
//! and the live views read. Nothing here is counted up and down beside the thing it counts.

use super::{access_log, capture, content, push, quality};
use crate::backend::LabelledModel;
use serde::{Serialize, Serializer};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokenweir_core::model::Model;
use tokenweir_diagnose::Diagnosis;
use tokenweir_net::supervise::Panics;
use tokenweir_net::tls;

/// One moment of the gateway.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Vitals {
    /// Requests between their first byte and their last.
    pub in_flight: usize,
    /// Whether the gateway takes requests.
    pub ready: bool,
    /// Why no replica may be sent requests: the states of all. `None`: one may.
    pub unready: Option<String>,
    /// Whether so many replicas are ejected that ejections are ignored.
    pub panic: bool,
    /// Whether it is shutting down.
    pub draining: bool,
    /// Requests that wait for a replica with room, by class, the highest first.
    pub queue: Vec<QueueVitals>,
    /// Each replica.
    pub backends: Vec<BackendVitals>,
    /// What is the matter with them.
    #[serde(skip)]
    pub diagnosis: Arc<Diagnosis>,
    /// Memory of what is remembered of a large fleet to draw its short lists.
    pub short_list_bytes: usize,
    /// The models that are label values.
    #[serde(skip)]
    pub models: Vec<LabelledModel>,
    /// The tenants that are label values.
    pub tenants: Vec<String>,
    /// Spans by what became of them.
    pub spans: SpanCounts,
    /// Records of a capture by what became of them.
    pub capture: capture::Counts,
    /// Lines and texts by what became of them.
    pub logs: LogCounts,
    /// Whether answers are as good as they were. `None`: nobody looks.
    pub quality: Option<quality::Vitals>,
    /// Pushes of the metrics by how they went.
    pub pushes: push::Counts,
    /// The connections of clients.
    pub connections: ConnectionVitals,
    /// The memory of request bodies.
    pub request_bodies: RequestBodyVitals,
    /// The certificates.
    pub tls: tls::Counts,
    /// How the configuration was read.
    pub reloads: Reloads,
    /// Panics of background tasks.
    #[serde(skip)]
    pub panics: Panics,
}

/// One moment of the connections of clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionVitals {
    /// How many there are.
    pub open: usize,
    /// How many there may be. `None`: as many as come.
    pub most: Option<usize>,
    /// Those that were one too many.
    pub full: u64,
    /// Those that were one too many of their client.
    pub client_full: u64,
    /// Handshakes of TLS that failed.
    pub handshakes: u64,
    /// Times that the system gave none although there was one.
    pub accept_errors: u64,
}

/// One moment of the memory of request bodies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RequestBodyVitals {
    /// Bytes that are held.
    pub bytes: usize,
    /// Most bytes that may be held.
    pub limit: usize,
}

/// How the configuration was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Reloads {
    /// Whether it could be used when it was last read.
    pub last_successful: bool,
    /// When it last could, in seconds since 1970.
    pub last_success_seconds: f64,
    /// Times that it was read again, and used.
    pub ok: u64,
    /// Times that it was read again, and the one before held on.
    pub failed: u64,
}

/// One moment of a class of the waiting room.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QueueVitals {
    /// Its name.
    pub class: String,
    /// How many wait.
    pub waiting: usize,
}

/// One moment of a replica.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendVitals {
    /// Its name.
    pub backend: String,
    /// Where it is.
    pub url: String,
    /// `up`, `down`, `unknown`, or [`LEAVING`].
    pub health: &'static str,
    /// How it stands with its circuit breaker.
    pub breaker: &'static str,
    /// Times that it was ejected.
    pub ejections: u64,
    /// Whether it may be sent new requests, and if not, why: [`Availability::as_str`](crate::backend::Availability::as_str), or [`LEAVING`].
    pub state: &'static str,
    /// Whether it is sent new requests now: in panic mode also one that is ejected.
    pub up: bool,
    /// Why it is sent nothing.
    pub reason: Option<String>,
    /// Its share of the work, relative to the others'.
    pub weight: u32,
    /// Whether an operator wants it to get nothing new.
    pub drained: bool,
    /// The vLLM version it runs.
    pub version: Option<String>,
    /// Its models.
    #[serde(serialize_with = "ids")]
    pub models: Arc<[Model]>,
    /// Requests of this gateway at it.
    pub in_flight: u32,
    /// Its streams that are silent for too long now.
    pub stalled: u32,
    /// Times that one fell silent for too long.
    pub stalls: u64,
    /// What it last said of itself.
    pub kv_usage: Option<f64>,
    /// Requests waiting in its engine.
    pub waiting: Option<f64>,
    /// Requests running in its engine.
    pub running: Option<f64>,
    /// Preemptions since its start.
    pub preemptions: Option<f64>,
    /// Tokens its KV cache can hold.
    pub kv_capacity_tokens: Option<u64>,
    /// Whether its engine sleeps.
    pub asleep: Option<bool>,
    /// The family of servers whose metrics it has.
    pub dialect: Option<&'static str>,
    /// What its metrics tell, and what they do not.
    pub signals: SignalVitals,
    /// How old that is, in seconds.
    pub sample_age_seconds: Option<f64>,
    /// Why the last look at its metrics failed.
    pub metrics_error: Option<&'static str>,
    /// What the gateway has found out itself.
    pub learned: LearnedVitals,
}

/// The health of a replica that went away and still has requests.
pub const LEAVING: &str = "leaving";

/// What the gateway believes of a replica beyond what that said: from the answers that it gave.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LearnedVitals {
    /// What its last word still counts for: horizon ÷ (horizon + age), 0 if there is none.
    pub certainty: f64,
    /// Prompt tokens that it computes in a second.
    pub prefill_tokens_per_second: f64,
    /// Seconds to a first output before any token is computed.
    pub prefill_base_seconds: f64,
    /// Prompt tokens that it has to compute before those of a new request.
    pub prefill_backlog_tokens: f64,
    /// Mean time to a first output lately. `None`: none came.
    pub ttft_seconds: Option<f64>,
    /// Bytes of a prompt for each of its tokens.
    pub bytes_per_token: f64,
    /// Tokens of an answer, on the whole.
    pub output_tokens: f64,
    /// Share of its KV cache in which it keeps what was sent.
    pub prefix_retention: f64,
    /// Memory that the index of what was sent to it takes.
    pub prefix_index_bytes: usize,
}

/// The signals of a replica, each by its name in [`tokenweir_core::signals::SIGNALS`].
#[derive(Debug, Clone, Default, Serialize)]
pub struct SignalVitals {
    /// Those that its last page told.
    pub offered: Vec<&'static str>,
    /// Those that it did not.
    pub missing: Vec<&'static str>,
}

/// What became of spans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpanCounts {
    /// Given to the exporter's queue.
    pub queued: u64,
    /// Taken by the collector.
    pub exported: u64,
    /// Not taken by the collector, or lost on the way.
    pub failed: u64,
    /// Of traces that are not sampled.
    pub filtered: u64,
}

/// What became of what is logged of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LogCounts {
    /// Lines of the access log.
    pub access: access_log::Counts,
    /// Prompts and answers.
    pub content: content::Counts,
}

// === impl Reloads ===

impl Reloads {
    /// It was read for the first time.
    pub fn begun(now: SystemTime) -> Self {
        Self { last_successful: true, last_success_seconds: seconds(now), ..Self::default() }
    }

    /// It was read again, and is used.
    pub fn succeeded(&mut self, now: SystemTime) {
        let Self { ok, failed, .. } = *self;
        *self = Self { ok: ok + 1, failed, ..Self::begun(now) };
    }

    /// It was read again, and cannot be used.
    pub fn failed(&mut self) {
        self.last_successful = false;
        self.failed += 1;
    }
}

fn ids<S: Serializer>(models: &Arc<[Model]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(models.iter().map(|model| &*model.id))
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
