//! The values that the cache map reads from the record of a request.

use std::sync::Arc;
use std::time::Instant;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::openai::Usage;
use tokenweir_request::record::{ClientIdentity, Outcome, RequestRecord};
use tokenweir_routing::PromptFingerprint;

/// A prompt that a backend has computed.
pub(super) struct PromptUse<'a> {
    pub(super) backend: &'a BackendId,
    pub(super) caller: Option<&'a Arc<ClientIdentity>>,
    pub(super) prompt: &'a PromptFingerprint,
    /// Prompt tokens: reported by the engine, otherwise estimated.
    pub(super) prompt_tokens: u64,
    /// Prompt tokens from the cache: reported by the engine, otherwise estimated.
    pub(super) cached_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) ended: Instant,
}

impl<'a> PromptUse<'a> {
    /// The prompt of an ended request. `None`: no backend has computed the prompt, or the gateway
    /// did not read it.
    pub(super) fn from_record(record: &'a RequestRecord) -> Option<Self> {
        let prompt = record.fingerprint.as_deref().filter(|prompt| prompt.bytes > 0)?;
        let is_computed = record.outcome == Outcome::Ok || record.timings.first_output.is_some();
        let chosen = record.selected_candidate()?.candidate;
        let Usage { input, output, cached, .. } = record.engine_token_counts();
        is_computed.then_some(Self {
            backend: record.backend()?,
            caller: record.caller.as_ref(),
            prompt,
            prompt_tokens: input.unwrap_or(chosen.prompt as u64),
            cached_tokens: cached.unwrap_or(chosen.cached as u64),
            output_tokens: output.unwrap_or_default(),
            ended: record.timings.ended.unwrap_or(record.timings.accepted),
        })
    }

    /// Mean number of tokens in a text block of the prompt, at least 1.
    pub(super) fn block_tokens(&self) -> f64 {
        let PromptFingerprint { bytes, block_bytes, .. } = self.prompt;
        (f64::from(*block_bytes) * self.prompt_tokens as f64 / *bytes as f64).max(1.0)
    }
}
