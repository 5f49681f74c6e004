//! The JSON documents of the admin listener, shared by the gateway that writes them and by
//! `tokenweir top`, which reads them.
//!
//! A field that another version of the gateway leaves out has its default value.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokenweir_diagnose::Verdict;

/// One moment of the gateway. What another version leaves out is empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    /// The gateway's version.
    pub version: String,
    /// The policy that chooses replicas.
    pub policy: String,
    /// Whether it takes requests.
    pub ready: bool,
    /// Why no replica may be sent requests: the states of all. `None`: one may.
    pub unready: Option<String>,
    /// Whether so many replicas are ejected that ejections are ignored.
    pub panic: bool,
    /// Whether it is shutting down.
    pub draining: bool,
    /// Seconds since its start. Rates are what a total grew by, over what this did.
    pub uptime_seconds: f64,
    /// Requests between their first byte and their last.
    pub requests_in_flight: usize,
    /// Requests that wait for a replica with room, by class.
    pub queue: Vec<Waiting>,
    /// Each replica.
    pub replicas: Vec<Replica>,
    /// The streams that are open.
    pub streams: Streams,
    /// All since the start; the tokens of streams that are open are among them.
    pub totals: Totals,
    /// What ended in the last minute.
    pub last_minute: LastMinute,
    /// The last requests that ended and the last slow ones, the newest first.
    pub ended: Vec<EndedRequest>,
    /// What is wrong, as `/status` says it.
    pub verdicts: Vec<Verdict>,
    /// Where a trace can be looked at: a URL with `{trace_id}` in it.
    pub trace_ui: Option<String>,
}

/// A class of the waiting room.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Its name.
    pub class: String,
    /// How many wait.
    pub waiting: usize,
}

/// One replica.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Replica {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// `up`, `down`, `unknown` or `leaving`.
    pub health: String,
    /// How it stands with its circuit breaker.
    pub breaker: String,
    /// Whether it may be sent new requests, and if not, why: `available`, `ejected`, `asleep`,
    /// `zero_weight`, `drained`, `down`, `unknown` or `leaving`.
    pub state: String,
    /// Whether it is sent new requests now: in panic mode also one that is ejected.
    pub up: bool,
    /// Why it is sent nothing.
    pub reason: Option<String>,
    /// Whether an operator wants it to get nothing new.
    pub drained: bool,
    /// Its share of the work, relative to the others', as configured; 0 while it is drained.
    pub weight: u32,
    /// Its models.
    pub models: Vec<String>,
    /// How full its KV cache is, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV cache holds.
    pub kv_capacity_tokens: Option<u64>,
    /// Requests that wait in its engine.
    pub waiting: Option<f64>,
    /// Requests that run in its engine.
    pub running: Option<f64>,
    /// Requests of this gateway at it.
    pub in_flight: u32,
    /// Its streams that are silent for too long.
    pub stalled: u32,
    /// Its part, from 0 to 1, of the requests that ended in the last minute or are in flight.
    pub share: Option<f64>,
    /// Mean time to a first output lately, in seconds.
    pub ttft_seconds: Option<f64>,
    /// How old is what it says of itself.
    pub sample_age_seconds: Option<f64>,
    /// Why the last look at its metrics failed.
    pub metrics_error: Option<String>,
}

/// The streams that are open: those whose answer's head has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Streams {
    /// How many there are.
    pub count: usize,
    /// How many are in each phase.
    pub phases: BTreeMap<String, usize>,
    /// Those that have been open longest, up to 200.
    pub oldest: Vec<Stream>,
}

/// One stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    /// How many had been opened before.
    pub number: u64,
    /// The `x-request-id`.
    pub request_id: String,
    /// The model as a label.
    pub model: String,
    /// The replica.
    pub replica: Option<String>,
    /// The tenant as a label.
    pub tenant: Option<String>,
    /// `prefill`, `decode`, `stalled`, `held` by its client, or `ending`.
    pub phase: String,
    /// Since the request head was read.
    pub age_seconds: f64,
    /// Tokens so far, by the number of events where they do not tell.
    pub tokens: u64,
    /// Since the last output came.
    pub silence_seconds: Option<f64>,
}

/// A request that ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndedRequest {
    /// How many had ended before.
    pub number: u64,
    /// The `x-request-id`.
    pub request_id: String,
    /// When it began.
    pub started: String,
    /// Since it ended.
    pub age_seconds: f64,
    /// The model as a label.
    pub model: String,
    /// The replica that was asked last.
    pub replica: Option<String>,
    /// The tenant as a label.
    pub tenant: Option<String>,
    /// How it ended.
    pub outcome: String,
    /// Time to first token, in the client's view.
    pub ttft_seconds: Option<f64>,
    /// How long it took.
    pub duration_seconds: f64,
    /// Tokens of its answer.
    pub output_tokens: Option<u64>,
    /// Why it was slow, if it was.
    pub slow: Option<String>,
    /// Its trace, if it is kept.
    pub trace_id: Option<String>,
}

/// The last minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastMinute {
    /// How long it is: less than 60 at the start, and up to a window more.
    pub seconds: f64,
    /// Requests that ended.
    pub requests: u64,
    /// Those of them that failed, for whatever reason. A client that left is no failure.
    pub failed: u64,
    /// Those of them whose client left.
    pub left: u64,
    /// Tokens in their answers.
    pub output_tokens: u64,
    /// Time to first token of their streams, in the clients' view, in seconds.
    pub ttft: Option<Quantiles>,
    /// Inter-token latency of their streams, in seconds: of one whose events do not tell how many
    /// tokens they bring, the time between events.
    pub itl: Option<Quantiles>,
    /// Duration of those that went well, in seconds.
    pub e2e: Option<Quantiles>,
    /// Those of them that each replica answered.
    pub by_replica: BTreeMap<String, u64>,
}

/// All since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Requests that ended.
    pub requests: u64,
    /// Output tokens.
    pub output_tokens: u64,
}

/// Where the times of many requests lie, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantiles {
    /// How many there were.
    pub count: u64,
    /// Half of them are not above.
    pub p50: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}
