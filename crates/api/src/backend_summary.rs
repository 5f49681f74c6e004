//! The state of one backend in the documents of `GET /streams` and `GET /status`.

use super::backend_condition::BackendCondition;
use std::collections::BTreeMap;
use std::ops::Deref;
use tokenweir_diagnose::DrainSummary;

document! {
    /// The state of one backend, as the live page and `tokenweir status` show it.
    pub struct BackendSummary {
        /// The configured name, or else host and port.
        name: String,
        /// Properties and state of the backend. `GET /status` shows them too.
        #[serde(flatten)]
        facts: BackendFacts,
        /// State of the backend's KV events. `off`: no connection to a publisher yet. `gap`: messages are missing.
        /// `from_here`: complete since a moment after the start of the engine. `exact`: complete since the start of
        /// the engine, or since its cache was cleared. `None`: the gateway does not subscribe to KV events of the
        /// backend.
        kv_events: Option<String>,
        /// Share of this backend, from 0 to 1, of all requests that ended in the last minute or are open. `None`:
        /// there were no requests.
        share: Option<f64>,
        /// Mean TTFT of the streams that ended in the last minute, in seconds. `None`: no stream ended.
        ttft_seconds: Option<f64>,
        /// Number of streams from which `ttft_seconds` is computed.
        ended_streams: u64,
        /// Number of failed attempts at the backend. Attempts count in the minute in which their request ends.
        failed_attempts: u64,
        /// `failed_attempts` as a share of all attempts at the backend, from 0 to 1. `None`: there was no attempt.
        failed_share: Option<f64>,
        /// Number of attempts at the backend that were answered with a 4xx status, by status. Only requests that
        /// ended in the last minute count.
        client_errors: BTreeMap<u16, u64>,
        /// Share of all attempts at the backend that were answered with a 4xx status, from 0 to 1. `None`: no
        /// attempt.
        client_error_share: Option<f64>,
        /// Whether an operator must look at the backend, and the reason in one word.
        condition: BackendCondition,
        /// The reason of the condition as text. `None`: the condition is `ok`, or `state` already names the cause.
        condition_reason: Option<String>,
        /// The GPUs of the backend. `None`: no GPU exporter reports them.
        gpus: Option<GpuSummary>,
    }

    /// Properties and state of one backend. `GET /status` shows them too.
    pub struct BackendFacts {
        /// URL of the backend, without the paths of requests.
        url: String,
        /// Health of the backend: `up`, `down`, `unknown` (no health check has completed yet) or
        /// `leaving` (removed from the pool, with open requests).
        health: String,
        /// State of the circuit breaker: `closed` (the backend gets requests), `resting` (no requests for a short
        /// time, because the backend reported overload or a pause), `open` or `half_open`.
        breaker: String,
        /// Availability for new requests: `available`, `ejected`, `asleep`, `paused`, `starting`, `scaling`,
        /// `retired`, `zero_weight`, `drained`, `down`, `unknown` or `leaving`.
        state: String,
        /// Whether the backend gets new requests now. In panic mode, this is true for an ejected backend too.
        up: bool,
        /// Why the backend gets no new requests, if a health check failed or the engine sleeps. `None`: the backend
        /// gets requests, or `state` alone names the cause.
        reason: Option<String>,
        /// Whether an operator or the configuration has drained the backend.
        drained: bool,
        /// The drain of the backend: who began it, when, why, and when it ends. `None`: the backend is not drained.
        drain: Option<DrainSummary>,
        /// Configured weight relative to the other backends; 0 while the backend is drained.
        weight: u32,
        /// Version of the engine. `None`: unknown.
        version: Option<String>,
        /// Front end of vLLM: `python` or `rust`. `None`: unknown, or the server is not vLLM.
        front_end: Option<String>,
        /// Maximum sum of prompt and output tokens of a request, by base model. A model whose maximum is
        /// unknown has no entry.
        max_model_len: BTreeMap<String, u32>,
        /// Features that the backend does not serve although other backends do: API paths, or `media` for media
        /// in prompts.
        unserved: Vec<String>,
        /// Names of the models that the backend serves.
        models: Vec<String>,
        /// Used share of the KV cache at the last scrape, from 0 to 1. `None`: the engine does not report it.
        kv_usage: Option<f64>,
        /// Capacity of the KV cache, in tokens. `None`: not reported.
        kv_capacity_tokens: Option<u64>,
        /// Number of requests that wait in the engine, from the last scrape. `None`: not reported.
        waiting: Option<f64>,
        /// Number of requests that run in the engine, from the last scrape. `None`: not reported.
        running: Option<f64>,
        /// Number of open requests of this gateway on the backend.
        in_flight: u32,
        /// Number of stalled streams of the backend.
        stalled: u32,
        /// Time in seconds since the oldest request without output became overdue, while no other request had
        /// output either. 0: no request is overdue.
        overdue_seconds: f64,
        /// Age of the last scrape of the load, in seconds. `None`: the backend was never scraped.
        scrape_age_seconds: Option<f64>,
        /// Why the last scrape failed. `None`: the last scrape succeeded.
        scrape_error: Option<String>,
    }

    /// The GPUs of one backend, as one summary.
    pub struct GpuSummary {
        /// Number of GPUs.
        count: usize,
        /// Mean utilisation, from 0 to 1. `None`: not reported.
        utilization: Option<f64>,
        /// Used share of the memory of all GPUs together, from 0 to 1. `None`: not reported.
        memory_usage: Option<f64>,
        /// Temperature of the hottest GPU, in degrees Celsius. `None`: not reported.
        max_temperature_celsius: Option<f64>,
        /// Whether a GPU lowers its clock because its cooling or its power supply is faulty. `None`: not reported.
        is_throttled: Option<bool>,
        /// Age of the oldest scraped metrics page that reports these GPUs, in seconds.
        scrape_age_seconds: f64,
    }
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
