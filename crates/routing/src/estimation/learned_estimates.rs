//! Estimates learned from the responses of one backend: prefill cost, tokens per byte, output length, response
//! time, and how long its prefix cache keeps sent blocks.

use super::length_refusals::LengthRefusals;
use super::limits::{EMA_WEIGHT, OptionalF64, PREDICTION_ERROR};
use super::prefill_cost::{PrefillCost, learned_ratio};
use super::reservation::Reservation;
use std::time::Instant;
use tokenweir_protocol::atomic::AtomicF64;
use tokenweir_protocol::openai::Usage;
use tokenweir_protocol::openai::prompt::TOKENS_PER_BYTE;

/// Estimates learned from the responses of one backend. Reading takes no lock.
#[derive(Debug, Default)]
#[repr(C)] // the fields that routing decisions read come first, next to each other
pub struct LearnedEstimates {
    prefill_ratio: OptionalF64,
    ttft: OptionalF64,
    uncached_prompt_tokens: OptionalF64,
    output_tokens: OptionalF64,
    cache_retention: OptionalF64,
    /// Sum of the bytes of recent prompts. Long prompts dominate the ratio of `text_tokens` to this sum, so the
    /// tokens that a chat template adds to each prompt hardly influence it.
    text_bytes: AtomicF64,
    text_tokens: AtomicF64,
    response_seconds: OptionalF64,
    length_refusals: LengthRefusals,
}

/// Idle time in seconds after which the weight of the prefill cost is ¼.
const OLD_SECONDS: f64 = 10.0;
/// Expected output tokens of a response, until a response reports its usage.
const DEFAULT_OUTPUT_TOKENS: f64 = 256.0;
/// Maximum number of tokens per byte of text.
const MAX_TOKENS_PER_BYTE: f64 = 4.0;
/// Relative change of the cache retention if the prediction of cached tokens was wrong by the whole prompt. After a
/// right prediction, the retention grows by half as much.
const RETENTION_STEP: f64 = 0.02;
/// Maximum difference between reported and predicted cached tokens, as a share of the prompt, for which the
/// prediction counts as right.
const RETENTION_DEAD_BAND: f64 = 0.1;

/// Sums over the recent prompts of a backend.
#[derive(Debug, Clone, Copy)]
pub struct LearnedText {
    /// Bytes of the prompts.
    pub bytes: f64,
    /// Tokens of the prompts.
    pub tokens: f64,
}

impl LearnedEstimates {
    pub(super) fn forget(&self) {
        self.prefill_ratio.set(None);
        self.ttft.set(None);
        self.uncached_prompt_tokens.set(None);
        self.output_tokens.set(None);
        self.cache_retention.set(None);
        self.response_seconds.set(None);
        self.text_bytes.set(0.0);
        self.text_tokens.set(0.0);
        self.length_refusals.forget();
    }

    /// Cost of prefill at the backend. Before the first output, the default.
    pub fn prefill(&self) -> PrefillCost {
        PrefillCost::at_ratio(self.ratio())
    }

    fn ratio(&self) -> f64 {
        self.prefill_ratio.get().unwrap_or(1.0)
    }

    /// Weight of the prefill cost, from 0 to 1, if the last output came `idle` seconds ago. 0: no
    /// output yet.
    pub(super) fn freshness(&self, idle: f64) -> f64 {
        if self.ttft.get().is_none() {
            return 0.0;
        }
        let age = idle / OLD_SECONDS;
        let spread = 1.0 + age * age;
        (spread * spread).recip()
    }

    /// Moving average of the time to first output in seconds. `None`: no output yet.
    pub fn ttft(&self) -> Option<f64> {
        self.ttft.get()
    }

    /// Whether a response has reported its prompt tokens.
    pub fn has_usage(&self) -> bool {
        self.uncached_prompt_tokens.get().is_some()
    }

    /// Sums of the bytes and the tokens of recent prompts, with less weight for older ones. Zeros: no tokens
    /// are known yet.
    pub fn text(&self) -> LearnedText {
        LearnedText {
            bytes: self.text_bytes.get(),
            tokens: self.text_tokens.get(),
        }
    }

    /// Records that the engine refused a prompt because it has at least `tokens` tokens. This only raises the
    /// estimated tokens per byte. `tokens` is a lower bound, so without other observations it gets little
    /// weight, and the first reported usage replaces it. For prompts of this length or longer it remains the
    /// [minimum number of tokens](Self::least_tokens).
    pub fn on_too_long(&self, bytes: u64, tokens: u64, now: Instant) {
        let most = bytes as f64 * MAX_TOKENS_PER_BYTE;
        self.length_refusals
            .add(bytes, tokens.min(most as u64), now);
        let known = self.text();
        let bytes = bytes as f64;
        let tokens = tokens as f64;
        if known.bytes == 0.0 && bytes > 0.0 && tokens > 0.0 {
            self.add_text(bytes / tokens, 1.0);
        } else if known.tokens * bytes < tokens * known.bytes {
            self.add_text(bytes, tokens);
        }
    }

    /// Minimum number of tokens of a text prompt, according to refused prompts that were not longer. 0: the
    /// engine refused none in the last 10 minutes.
    pub fn least_tokens(&self, bytes: u64, now: Instant) -> f64 {
        self.length_refusals.least_tokens(bytes, now)
    }

    /// Adds a prompt to the sums. Its number of tokens is bounded, because a client can make an engine repeat
    /// any number in an error message.
    fn add_text(&self, bytes: f64, tokens: f64) {
        let tokens = tokens.min(bytes * MAX_TOKENS_PER_BYTE);
        let kept = 1.0 - EMA_WEIGHT;
        self.text_bytes.set(self.text_bytes.get() * kept + bytes);
        self.text_tokens.set(self.text_tokens.get() * kept + tokens);
    }

    /// Prompt tokens per byte of the prompt in the request body.
    pub fn tokens_per_byte(&self) -> f64 {
        let text = self.text();
        if text.tokens > 0.0 {
            text.tokens / text.bytes
        } else {
            TOKENS_PER_BYTE
        }
    }

    /// Moving average of the uncached prompt tokens of a request. 0: no usage reported yet.
    pub fn prompt_tokens(&self) -> f64 {
        self.uncached_prompt_tokens.get().unwrap_or(0.0)
    }

    /// Moving average of the output tokens of a response.
    pub fn output_tokens(&self) -> f64 {
        self.output_tokens.get().unwrap_or(DEFAULT_OUTPUT_TOKENS)
    }

    /// Number of last sent blocks that are probably still cached, as a share of the number of blocks of the KV
    /// cache. Initially 1.
    pub fn retention(&self) -> f64 {
        self.cache_retention.get().unwrap_or(1.0)
    }

    /// Moving average of the time from the first output of a response to its end, in seconds. For a
    /// non-streaming response, the time begins when the request is sent. `None`: no response has ended.
    pub fn answer(&self) -> Option<f64> {
        self.response_seconds.get()
    }

    /// Records that a response has ended. `seconds`: see [`answer`](Self::answer).
    pub(super) fn on_end(&self, seconds: f64) {
        self.response_seconds.average_in(seconds);
    }

    /// Records that the first output of a request came after `seconds`. This time includes a wait for a slot, if
    /// there was one. So if the request may have waited, the time counts only if prefill alone can explain it.
    pub(super) fn on_first_output(&self, request: &Reservation, seconds: f64) {
        self.ttft.average_in(seconds);
        let longest = PREDICTION_ERROR * self.prefill().seconds(request.work);
        if request.may_lack_slot && seconds > longest {
            return;
        }
        let ratio = learned_ratio(self.ratio(), request.work, seconds, request.freshness);
        self.prefill_ratio.set(Some(ratio));
    }

    /// Records the usage that the response to a request reported.
    pub(super) fn on_usage(&self, request: &Reservation, usage: &Usage) {
        let Reservation {
            text_bytes,
            cached: predicted_cached,
            ..
        } = *request;
        if let Some(output) = usage.output {
            self.output_tokens.average_in(output as f64);
        }
        let Some(prompt) = usage.input.filter(|prompt| *prompt > 0) else {
            return;
        };
        if text_bytes > 0 {
            self.add_text(text_bytes as f64, prompt as f64);
            self.length_refusals.on_usage(text_bytes, prompt);
        }
        // If another backend computed the prompt, the engine may or may not count the transferred blocks as
        // cached.
        let cached = if request.remote.is_some() {
            None
        } else {
            usage.cached
        };
        let uncached = prompt.saturating_sub(cached.unwrap_or(predicted_cached));
        self.uncached_prompt_tokens.average_in(uncached as f64);
        if let Some(cached) = cached {
            let excess = (cached as f64 - predicted_cached as f64) / prompt as f64;
            if predicted_cached > 0 || excess >= RETENTION_DEAD_BAND {
                self.adjust_cache_retention(excess);
            }
        }
    }

    /// Corrects the learned [`retention`](Self::retention) after a prompt had more cached tokens than predicted,
    /// by this share of its tokens. A faster correction would follow single evictions, and the prefix table would
    /// then forget blocks that the engine still has.
    fn adjust_cache_retention(&self, excess: f64) {
        let step = if excess.abs() >= RETENTION_DEAD_BAND {
            RETENTION_STEP * excess.clamp(-1.0, 1.0)
        } else {
            RETENTION_STEP / 2.0
        };
        let retention = self.retention() * (1.0 + step);
        self.cache_retention
            .set(Some(retention.clamp(1.0 / 64.0, 1.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn extreme_counts_have_a_bounded_effect() {
        let learned = LearnedEstimates::default();
        for tokens in [1_000_000_000_000_000_000, u64::MAX] {
            learned.on_too_long(100, tokens, clock::epoch());
            let text = learned.text();
            assert!(text.tokens <= 4.0 * text.bytes, "{text:?}");
            assert!(learned.least_tokens(100, clock::epoch()) <= 400.0);
        }
    }
}
