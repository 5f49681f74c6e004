//! The cached part of a prompt at a backend. It follows from KV events where they are decisive, and elsewhere
//! from the prompts that were sent to the backend.

use super::limits::{MAX_COUNT, at_most};
use tokenweir_protocol::named_enum;

named_enum! {
    /// Source of the cached tokens of a candidate.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum CachedSource {
        /// The prompts that are known to have been sent to the backend.
        #[default]
        Approximate = "approximate",
        /// The KV events of the backend, which decide how much of the prompt is cached.
        Exact = "exact",
    }
}

/// The cached part of a prompt, as the KV events of a backend show it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KnownPrefix {
    /// Cached prompt tokens.
    pub tokens: f64,
    /// Leading blocks of the prompt that are cached completely.
    pub blocks: u32,
    /// Whether the events show all cached tokens of the prompt. If false, the cache may contain more.
    pub is_decided: bool,
}

/// The length of a prompt, and its part that is probably in the cache of one backend.
pub(super) struct CachedTokens {
    /// Tokens of the prompt.
    pub(super) prompt: f64,
    pub(super) cached: f64,
    pub(super) cached_blocks: u32,
    pub(super) source: CachedSource,
}

impl KnownPrefix {
    /// Whether the number of tokens, which depends on the block size that the engine reports, can be right.
    pub(super) fn is_plausible(&self) -> bool {
        self.tokens <= MAX_COUNT
    }
}

impl CachedTokens {
    /// The cached part of a prompt of about `prompt` tokens whose events [decide](KnownPrefix). The prompt has
    /// blocks of `block_tokens` tokens. `pending`: number of its leading blocks that were sent since the oldest
    /// request without output. The engine computes these blocks before this prompt, but its events do not show
    /// them yet.
    pub(super) fn by_events(
        prompt: f64,
        block_tokens: f64,
        known: &KnownPrefix,
        pending: u32,
    ) -> Self {
        let pending_tokens = (f64::from(pending) * block_tokens).min(prompt);
        let is_exact = pending_tokens <= known.tokens;
        Self {
            prompt: prompt.max(known.tokens),
            cached: known.tokens.max(pending_tokens),
            cached_blocks: known.blocks.max(pending),
            source: if is_exact {
                CachedSource::Exact
            } else {
                CachedSource::Approximate
            },
        }
    }

    /// The cached part of a prompt of about `prompt` tokens with blocks of `block_tokens` tokens. `matched`:
    /// number of its leading blocks that were sent to the backend and are probably still cached.
    pub(super) fn by_sent_prompts(
        prompt: f64,
        block_tokens: f64,
        known: Option<&KnownPrefix>,
        matched: u32,
    ) -> Self {
        let cached = f64::from(matched) * block_tokens;
        let cached = known.map_or(cached, |known| cached.max(known.tokens));
        Self {
            prompt,
            cached: at_most(cached, prompt),
            cached_blocks: known.map_or(matched, |known| matched.max(known.blocks)),
            source: CachedSource::Approximate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn known(tokens: f64, blocks: u32, is_decided: bool) -> KnownPrefix {
        KnownPrefix {
            tokens,
            blocks,
            is_decided,
        }
    }

    fn cached(known: Option<KnownPrefix>) -> (f64, u32, CachedSource) {
        let cached = match &known {
            Some(known) if known.is_decided => CachedTokens::by_events(1_000.0, 128.0, known, 0),
            known => CachedTokens::by_sent_prompts(1_000.0, 128.0, known.as_ref(), 3),
        };
        (cached.cached, cached.cached_blocks, cached.source)
    }

    #[test]
    fn conclusive_events_replace_and_others_raise_the_estimate() {
        let known = |tokens, blocks, is_decided| Some(known(tokens, blocks, is_decided));
        assert_eq!(cached(None), (384.0, 3, CachedSource::Approximate));
        assert_eq!(cached(known(0.0, 0, true)), (0.0, 0, CachedSource::Exact));
        assert_eq!(
            cached(known(640.0, 5, false)),
            (640.0, 5, CachedSource::Approximate)
        );
        assert_eq!(
            cached(known(128.0, 1, false)),
            (384.0, 3, CachedSource::Approximate)
        );
    }

    #[test]
    fn prompts_that_await_output_raise_cached_tokens() {
        let cached = |tokens| CachedTokens::by_events(1_000.0, 128.0, &known(tokens, 1, true), 3);
        let raised = cached(128.0);
        assert_eq!((raised.cached, raised.cached_blocks), (384.0, 3));
        assert_eq!(raised.source, CachedSource::Approximate);
        let shown = cached(512.0);
        assert_eq!((shown.cached, shown.source), (512.0, CachedSource::Exact));
    }

    #[test]
    fn a_prompt_has_at_least_its_cached_tokens() {
        let known = known(1_200.0, 9, true);
        let cached = CachedTokens::by_events(1_000.0, 128.0, &known, 0);
        assert_eq!((cached.prompt, cached.cached), (1_200.0, 1_200.0));
    }
}
