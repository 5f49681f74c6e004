//! The cached part of a prompt at a backend. It follows from KV events where they are decisive, and elsewhere
//! from the prompts that were sent to the backend.

use super::limits::{MAX_COUNT, at_most};
use tokenweir_protocol::named_enum;

named_enum! {
    /// Source of the cached tokens of a candidate.
    #[derive(Default)]
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
    /// Number of prompt tokens that are cached.
    pub tokens: f64,
    /// Leading blocks of the prompt that are cached completely.
    pub blocks: u32,
    /// Whether the events show all cached tokens of the prompt. If false, the cache may contain more.
    pub is_decided: bool,
}

/// The length of a prompt, and its part that is probably in the cache of one backend.
pub(super) struct CachedTokens {
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
    /// The cached part of a prompt of about `prompt` tokens with blocks of `block_tokens` tokens. `known`: what
    /// the KV events show. `sent`: number of its leading blocks that were sent to the backend, and are probably
    /// cached when the engine computes this prompt. If the events decide, these are only the blocks sent since the
    /// oldest request without output, which the events do not show yet.
    pub(super) fn new(
        prompt: f64,
        block_tokens: f64,
        known: Option<&KnownPrefix>,
        sent: u32,
    ) -> Self {
        let sent_tokens = at_most(f64::from(sent) * block_tokens, prompt);
        let Some(known) = known else {
            return Self {
                prompt,
                cached: sent_tokens,
                cached_blocks: sent,
                source: CachedSource::Approximate,
            };
        };
        let is_exact = known.is_decided && sent_tokens <= known.tokens;
        let prompt = if known.is_decided {
            prompt.max(known.tokens)
        } else {
            prompt
        };
        Self {
            prompt,
            cached: at_most(sent_tokens.max(known.tokens), prompt),
            cached_blocks: sent.max(known.blocks),
            source: if is_exact {
                CachedSource::Exact
            } else {
                CachedSource::Approximate
            },
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
        let is_decided = known.is_some_and(|known| known.is_decided);
        let sent = if is_decided { 0 } else { 3 };
        let cached = CachedTokens::new(1_000.0, 128.0, known.as_ref(), sent);
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
        let cached = |tokens| CachedTokens::new(1_000.0, 128.0, Some(&known(tokens, 1, true)), 3);
        let raised = cached(128.0);
        assert_eq!((raised.cached, raised.cached_blocks), (384.0, 3));
        assert_eq!(raised.source, CachedSource::Approximate);
        let shown = cached(512.0);
        assert_eq!((shown.cached, shown.source), (512.0, CachedSource::Exact));
    }

    #[test]
    fn a_prompt_has_at_least_its_cached_tokens() {
        let known = known(1_200.0, 9, true);
        let cached = CachedTokens::new(1_000.0, 128.0, Some(&known), 0);
        assert_eq!((cached.prompt, cached.cached), (1_200.0, 1_200.0));
    }
}
