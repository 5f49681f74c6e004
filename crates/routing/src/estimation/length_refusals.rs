//! The prompts that one engine refused because they were too long.

use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::{AtomicF64, AtomicInstant};

/// The prompts that an engine refused because of their length. Reading takes no lock.
#[derive(Debug)]
pub(super) struct LengthRefusals {
    /// Bytes of the shortest refused prompt. Infinity: no prompt was refused.
    bytes: AtomicF64,
    /// Minimum number of tokens per byte of the refused prompts.
    tokens_per_byte: AtomicF64,
    /// Time of the last refusal. `None`: no prompt was refused.
    refused_at: AtomicInstant,
}

/// Time after which the gateway again tries prompts of a refused length. Without this limit, one client with an
/// unusual text would keep the prompts of all others away.
const MEMORY: Duration = Duration::from_mins(10);

impl Default for LengthRefusals {
    fn default() -> Self {
        Self {
            bytes: AtomicF64::new(f64::INFINITY),
            tokens_per_byte: AtomicF64::new(0.0),
            refused_at: AtomicInstant::default(),
        }
    }
}

impl LengthRefusals {
    pub(super) fn forget(&self) {
        self.bytes.set(f64::INFINITY);
        self.tokens_per_byte.set(0.0);
    }

    /// Records that the engine refused a prompt that has at least `tokens` tokens.
    pub(super) fn add(&self, bytes: u64, tokens: u64, now: Instant) {
        if bytes == 0 {
            return;
        }
        let bytes = bytes as f64;
        self.bytes.set(self.bytes.get().min(bytes));
        self.tokens_per_byte
            .set(self.tokens_per_byte.get().max(tokens as f64 / bytes));
        self.refused_at.set(Some(now));
    }

    /// Records that the engine served a prompt. Forgets the refusals if they contradict it.
    pub(super) fn on_usage(&self, bytes: u64, tokens: u64) {
        let bytes = bytes as f64;
        if bytes >= self.bytes.get() && (tokens as f64) < bytes * self.tokens_per_byte.get() {
            self.forget();
        }
    }

    /// Minimum number of tokens of a prompt, according to refusals of prompts of at most its length. 0: none in
    /// the last 10 minutes.
    pub(super) fn least_tokens(&self, bytes: u64, now: Instant) -> f64 {
        let bytes = bytes as f64;
        if bytes < self.bytes.get() {
            return 0.0;
        }
        let is_recent = |at| now.saturating_duration_since(at) < MEMORY;
        let is_bound = self.refused_at.get().is_some_and(is_recent);
        if is_bound {
            bytes * self.tokens_per_byte.get()
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn a_refusal_bounds_longer_prompts_for_ten_minutes() {
        let refusals = LengthRefusals::default();
        let now = clock::epoch();
        assert!(refusals.least_tokens(1 << 40, now) <= 0.0);
        refusals.add(33_000, 2_049, now);
        assert!(refusals.least_tokens(32_999, now) <= 0.0);
        assert!(refusals.least_tokens(33_000, now) >= 2_049.0);
        assert!(refusals.least_tokens(66_000, now) >= 4_098.0);
        refusals.on_usage(20_000, 9);
        assert!(
            refusals.least_tokens(33_000, now) >= 2_049.0,
            "a shorter prompt shows nothing"
        );
        let later = now + MEMORY + Duration::from_secs(1);
        assert!(refusals.least_tokens(33_000, later) <= 0.0);
        refusals.add(30_000, 2_049, now);
        refusals.on_usage(40_000, 1_500);
        assert!(refusals.least_tokens(40_000, now) <= 0.0);
    }
}
