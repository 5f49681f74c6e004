//! The usage of one request.

use serde::Serialize;
use std::time::{Duration, SystemTime};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::openai::Api;
use tokenweir_request::access::TokenCharge;
use tokenweir_request::record::{Attempt, RequestRecord};

/// The usage of one request, as the usage log contains it. Fields without a value are omitted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct UsageRecord {
    /// When the request ended.
    #[serde(skip)]
    pub(super) ended: SystemTime,
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// The user and the session, in the form of `identities.mode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<Box<str>>,
    api: &'static str,
    /// The model that the client requested, and its name at the backends.
    model: String,
    served_model: String,
    /// The version of the model that served the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    tier: String,
    /// The input tokens that count towards the limits of the tenant.
    input_tokens: u64,
    output_tokens: u64,
    /// Cached input tokens, as the engine reports them.
    cached_tokens: u64,
    reasoning_tokens: u64,
    token_counts: &'static str,
    /// Tokens that engines computed and the client did not receive.
    wasted_tokens: u64,
    /// Tokens that a further attempt or a continuation computed again.
    recomputed_tokens: u64,
    /// Sum of the times in which backends processed the request, over all attempts and prefill legs.
    backend_seconds: f64,
    duration_seconds: f64,
    attempts: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    outcome: &'static str,
}

impl UsageRecord {
    pub(super) fn from_record(record: &RequestRecord) -> Self {
        let charge = TokenCharge::from_record(record);
        let counts = record.engine_token_counts();
        let wasted = record.wasted_tokens();
        let caller = record.caller.as_ref();
        let identity = &record.options.identity;
        let model = record.model.name();
        let requested = record.notes.requested_model();
        Self {
            ended: record.started + record.duration(),
            request_id: record.request_id.as_str().to_owned(),
            tenant: caller.map(|caller| caller.tenant.to_string()),
            key: caller.map(|caller| caller.key.to_string()),
            user: identity.user.clone(),
            session: identity.session.clone(),
            api: record.api.map_or("none", Api::as_str),
            model: requested.unwrap_or(model).to_owned(),
            version: requested.map(|_| model.to_owned()),
            served_model: record.served_as.as_deref().unwrap_or(model).to_owned(),
            backend: record.backend().map(BackendId::as_str).map(str::to_owned),
            tier: record.tier.as_str().to_owned(),
            input_tokens: charge.input,
            output_tokens: charge.output,
            cached_tokens: counts.cached.unwrap_or(0),
            reasoning_tokens: counts.reasoning.unwrap_or(0),
            token_counts: record.observed.usage_source.as_str(),
            wasted_tokens: wasted.input + wasted.output,
            recomputed_tokens: wasted.recomputed,
            backend_seconds: backend_time(record).as_secs_f64(),
            duration_seconds: record.duration().as_secs_f64(),
            attempts: record.attempts.len(),
            status: record.status,
            outcome: record.outcome.as_str(),
        }
    }
}

fn backend_time(record: &RequestRecord) -> Duration {
    let took = |attempt: &Attempt| {
        let ended = attempt
            .ended
            .or(record.timings.ended)
            .unwrap_or(attempt.started);
        ended.saturating_duration_since(attempt.started)
    };
    record
        .attempts
        .iter()
        .chain(&record.attempts_apart)
        .map(took)
        .sum()
}
