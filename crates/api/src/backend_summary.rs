//! The state of one backend in the documents of `GET /streams` and `GET /status`.

use super::backend_condition::BackendCondition;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Deref;
use tokenweir_diagnose::DrainSummary;

/// The state of one backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendSummary {
    /// Name of the backend.
    pub name: String,
    /// Properties and state of the backend. `GET /status` shows them too.
    #[serde(flatten)]
    pub facts: BackendFacts,
    /// State of the backend's KV events. `off`: no connection to a publisher yet. `gap`: messages are missing.
    /// `from_here`: complete since a moment after the start of the engine. `exact`: complete since the start of
    /// the engine, or since its cache was cleared. `None`: the gateway does not subscribe to KV events of the
    /// backend.
    pub kv_events: Option<String>,
    /// Share of this backend, from 0 to 1, of all requests that ended in the last minute or are open. `None`:
    /// there were no requests.
    pub share: Option<f64>,
    /// Mean TTFT of the streams that ended in the last minute, in seconds. `None`: no stream ended.
    pub ttft_seconds: Option<f64>,
    /// Number of streams from which `ttft_seconds` is computed.
    pub ended_streams: u64,
    /// Number of failed attempts at the backend. Attempts count in the minute in which their request ends.
    pub failed_attempts: u64,
    /// `failed_attempts` as a share of all attempts at the backend, from 0 to 1. `None`: there was no attempt.
    pub failed_share: Option<f64>,
    /// Number of attempts at the backend that were answered with a 4xx status, by status. Only requests that
    /// ended in the last minute count.
    pub client_errors: BTreeMap<u16, u64>,
    /// Share of all attempts at the backend that were answered with a 4xx status, from 0 to 1. `None`:
    /// there was no attempt.
    pub client_error_share: Option<f64>,
    /// Whether an operator must look at the backend, and the reason in one word.
    pub condition: BackendCondition,
    /// The reason of the condition as text. `None`: the condition is `ok`, or `state` already names the cause.
    pub condition_reason: Option<String>,
    /// The GPUs of the backend. `None`: no GPU exporter reports them.
    pub gpus: Option<GpuSummary>,
}

/// Properties and state of one backend. `GET /status` shows them too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendFacts {
    /// URL of the backend.
    pub url: String,
    /// Health of the backend: `up`, `down`, `unknown` (no health check has completed yet) or
    /// `leaving` (removed from the pool, with open requests).
    pub health: String,
    /// State of the circuit breaker: `closed` (the backend gets requests), `resting` (no requests for a short
    /// time, because the backend reported overload or a pause), `open` or `half_open`.
    pub breaker: String,
    /// Availability for new requests: `available`, `ejected`, `asleep`, `paused`, `starting`, `scaling`,
    /// `retired`, `zero_weight`, `drained`, `down`, `unknown` or `leaving`.
    pub state: String,
    /// Whether the backend gets new requests now. In panic mode, this is true for an ejected backend too.
    pub up: bool,
    /// Why the backend gets no new requests, if a health check failed or the engine sleeps. `None`: the backend
    /// gets requests, or `state` alone names the cause.
    pub reason: Option<String>,
    /// Whether the backend is drained.
    pub drained: bool,
    /// The drain of the backend: who began it, when, why, and when it ends. `None`: the backend is not drained.
    pub drain: Option<DrainSummary>,
    /// Configured weight relative to the other backends; 0 while the backend is drained.
    pub weight: u32,
    /// Version of the engine. `None`: unknown.
    pub version: Option<String>,
    /// Front end of vLLM: `python` or `rust`. `None`: unknown, or the server is not vLLM.
    pub front_end: Option<String>,
    /// Greatest sum of prompt and output tokens of a request, by base model. A model whose maximum is unknown
    /// has no entry.
    pub max_model_len: BTreeMap<String, u32>,
    /// What the backend does not serve although other backends do: API paths, or `media` for media in prompts.
    pub unserved: Vec<String>,
    /// Names of the models that the backend serves.
    pub models: Vec<String>,
    /// Used share of the KV cache at the last scrape, from 0 to 1. `None`: the engine does not report it.
    pub kv_usage: Option<f64>,
    /// Capacity of the KV cache, in tokens. `None`: not reported.
    pub kv_capacity_tokens: Option<u64>,
    /// Number of requests that wait in the engine, from the last scrape. `None`: not reported.
    pub waiting: Option<f64>,
    /// Number of requests that run in the engine, from the last scrape. `None`: not reported.
    pub running: Option<f64>,
    /// Number of open requests of this gateway on the backend.
    pub in_flight: u32,
    /// Number of stalled streams of the backend.
    pub stalled: u32,
    /// Time in seconds since the oldest request without output became overdue, while no other request had
    /// output either. 0: no request is overdue.
    pub overdue_seconds: f64,
    /// Age of the last scrape of the load, in seconds. `None`: the backend was never scraped.
    pub scrape_age_seconds: Option<f64>,
    /// Why the last scrape failed. `None`: the last scrape succeeded.
    pub scrape_error: Option<String>,
}

/// The GPUs of one backend, as one summary.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuSummary {
    /// Number of GPUs.
    pub count: usize,
    /// Mean utilisation, from 0 to 1. `None`: not reported.
    pub utilization: Option<f64>,
    /// Used share of the memory of all GPUs together, from 0 to 1. `None`: not reported.
    pub memory_usage: Option<f64>,
    /// Temperature of the hottest GPU, in degrees Celsius. `None`: not reported.
    pub max_temperature_celsius: Option<f64>,
    /// Whether a GPU lowers its clock because its cooling or its power supply is faulty. `None`: not reported.
    pub is_throttled: Option<bool>,
    /// Age of the oldest scraped metrics page that reports these GPUs, in seconds.
    pub scrape_age_seconds: f64,
}

impl Deref for BackendSummary {
    type Target = BackendFacts;

    fn deref(&self) -> &BackendFacts {
        &self.facts
    }
}

impl BackendSummary {
    /// The condition in one word, for a table or a count. For an excluded backend, the word is its state, such
    /// as `asleep`.
    pub fn condition_word(&self) -> &str {
        match self.condition {
            BackendCondition::DrainHarms => "drained",
            BackendCondition::Excluded => match self.state.as_str() {
                "zero_weight" => "weight 0",
                "unknown" => "not checked",
                state => state,
            },
            condition => condition.as_str(),
        }
    }
}
