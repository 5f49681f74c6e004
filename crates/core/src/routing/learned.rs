//! What a replica's answers teach of it: how fast it computes prompts, how many tokens a byte
//! makes, how long answers are, and how long its prefix cache keeps what was sent.

use super::prefill::{Learner, Prefill};
use super::promise::Counts;
use super::said::Real;
use std::sync::{Mutex, PoisonError};

/// What was learned of one replica. Reading it takes no lock.
#[derive(Debug)]
#[repr(C)] // what decisions read first, and together
pub struct Learned {
    base: Real,
    per_token: Real,
    ttft: Real,
    tokens_per_byte: Real,
    prompt_tokens: Real,
    output_tokens: Real,
    retention: Real,
    answer: Real,
    learner: Mutex<Learner>,
}

/// How much of a mean one observation makes.
const STEP: f64 = 0.05;
/// Tokens for a byte of JSON, until answers tell: English text in chat messages.
const TOKENS_PER_BYTE: f64 = 0.25;
/// Tokens of an answer, until answers tell.
const OUTPUT_TOKENS: f64 = 256.0;
/// A token has many bytes at most, and a byte makes several tokens.
const TOKENS_RANGE: std::ops::RangeInclusive<f64> = 1.0 / 64.0..=4.0;
/// The share of its cache that a replica keeps what was sent in, at least and at most. More than
/// all: requests of others may bring what ours ask for again.
const RETENTION: std::ops::RangeInclusive<f64> = 1.0 / 64.0..=1.5;

impl Default for Learned {
    fn default() -> Self {
        let prefill = Prefill::default();
        Self {
            base: Real::new(prefill.base),
            per_token: Real::new(prefill.per_token),
            ttft: Real::new(f64::NAN),
            tokens_per_byte: Real::new(f64::NAN),
            prompt_tokens: Real::new(f64::NAN),
            output_tokens: Real::new(f64::NAN),
            retention: Real::new(1.0),
            answer: Real::new(f64::NAN),
            learner: Mutex::default(),
        }
    }
}

impl Learned {
    /// What a first output costs.
    pub fn prefill(&self) -> Prefill {
        Prefill { base: self.base.get(), per_token: self.per_token.get() }
    }

    /// The mean time to a first output lately, in seconds. `None`: none came.
    pub fn ttft(&self) -> Option<f64> {
        known(&self.ttft)
    }

    /// Whether answers told how many tokens prompts have.
    pub fn is_told(&self) -> bool {
        known(&self.tokens_per_byte).is_some()
    }

    /// Tokens that a byte of a prompt makes, as it stands in a request.
    pub fn tokens_per_byte(&self) -> f64 {
        known(&self.tokens_per_byte).unwrap_or(TOKENS_PER_BYTE)
    }

    /// Tokens that a prompt has to have computed, on the whole; 0 if no answer told.
    pub fn prompt_tokens(&self) -> f64 {
        known(&self.prompt_tokens).unwrap_or(0.0)
    }

    /// Tokens of an answer, on the whole.
    pub fn output_tokens(&self) -> f64 {
        known(&self.output_tokens).unwrap_or(OUTPUT_TOKENS)
    }

    /// The share of its KV cache in which it keeps what was sent.
    pub fn retention(&self) -> f64 {
        self.retention.get()
    }

    /// The mean time in seconds from the first output of an answer to its end; of an answer that is
    /// no stream, from the request on. `None`: no answer has ended.
    pub fn answer(&self) -> Option<f64> {
        known(&self.answer)
    }

    /// An answer has ended after this time.
    pub(super) fn on_end(&self, seconds: f64) {
        approach(&self.answer, seconds);
    }

    /// A first output came so late. `work`: the tokens that had to be computed before it; `None` if the
    /// request had to wait for something else, too.
    pub(super) fn on_first_output(&self, work: Option<f64>, seconds: f64) {
        approach(&self.ttft, seconds);
        let Some(work) = work else { return };
        let mut learner = self.learner.lock().unwrap_or_else(PoisonError::into_inner);
        let line = learner.on_first_output(work, seconds);
        self.base.set(line.base);
        self.per_token.set(line.per_token);
    }

    pub(super) fn on_counts(&self, bytes: u64, believed: u64, counts: &Counts) {
        if let Some(output) = counts.output {
            approach(&self.output_tokens, output as f64);
        }
        let Some(prompt) = counts.prompt.filter(|prompt| *prompt > 0) else { return };
        if bytes > 0 {
            let ratio = prompt as f64 / bytes as f64;
            let ratio = ratio.clamp(*TOKENS_RANGE.start(), *TOKENS_RANGE.end());
            approach(&self.tokens_per_byte, ratio);
        }
        let uncached = prompt.saturating_sub(counts.cached.unwrap_or(believed));
        approach(&self.prompt_tokens, uncached as f64);
        if let Some(cached) = counts.cached {
            self.correct(believed as f64, cached as f64, prompt as f64);
        }
    }

    /// The cache had more or less of a prompt than was believed: it keeps longer or shorter what
    /// is sent. Less is believed at once, more with time.
    fn correct(&self, believed: f64, cached: f64, prompt: f64) {
        let missing = (believed - cached) / prompt;
        let factor = if missing > 0.1 {
            1.0 - 0.25 * missing
        } else if missing < -0.1 || believed > 0.0 {
            1.02
        } else {
            return;
        };
        let retention = self.retention.get() * factor;
        self.retention.set(retention.clamp(*RETENTION.start(), *RETENTION.end()));
    }
}

fn known(mean: &Real) -> Option<f64> {
    Some(mean.get()).filter(|mean| !mean.is_nan())
}

/// A mean that forgets; the first value is taken whole.
fn approach(mean: &Real, value: f64) {
    let before = mean.get();
    mean.set(if before.is_nan() { value } else { before + STEP * (value - before) });
}
