//! Cache efficiency: how full the KV caches are, what that costs, and what they save.

use super::grid::Row;
use super::panel::{Panel, Thresholds};
use super::query::{gauge_by, rate_by};
use crate::catalogue::Catalogue;

pub(super) fn row(metrics: &Catalogue) -> Row {
    Row {
        title: "Cache efficiency",
        panels: vec![
            Panel::lines(
                "KV cache in use",
                "percentunit",
                "Share of each replica's cache that requests hold. High without preemptions and without \
                 a queue is good use.",
            )
            .asks(gauge_by(metrics, "backend", "tokenweir_backend_kv_usage_ratio"), "{{backend}}")
            .bad(Thresholds::Above(0.9, 0.97)),
            Panel::lines(
                "Preemptions",
                "short",
                "Requests a second that lost their blocks and are computed again. Good is 0.",
            )
            .asks(rate_by(metrics, "backend", "tokenweir_backend_preemptions_total", ""), "{{backend}}"),
            Panel::lines(
                "Prefix hits",
                "percentunit",
                "Share of prompt tokens that each engine found in its cache. Chats with long histories \
                 reach 60 % and more; single questions near 0.",
            )
            .asks(
                format!(
                    "{}\n/ {}",
                    rate_by(metrics, "backend", "vllm:prefix_cache_hits_total", ""),
                    rate_by(metrics, "backend", "vllm:prefix_cache_queries_total", ""),
                ),
                "{{backend}}",
            ),
            Panel::lines(
                "Cached tokens, believed and told",
                "short",
                "Prompt tokens a second that routing believed to be cached, and those that were. The same \
                 is good. Only of answers that tell it (vLLM's --enable-prompt-tokens-details).",
            )
            .asks(rate_by(metrics, "backend", "tokenweir_cached_tokens_predicted_total", ""), "{{backend}} believed")
            .asks(rate_by(metrics, "backend", "tokenweir_cached_tokens_reported_total", ""), "{{backend}} told"),
            Panel::lines(
                "Kept of the cache",
                "percentunit",
                "Share of each cache in which prefixes last, as learned from its counts. It falls when \
                 running requests need the room.",
            )
            .asks(gauge_by(metrics, "backend", "tokenweir_backend_prefix_retention_ratio"), "{{backend}}"),
            Panel::lines(
                "Prefill speed",
                "short",
                "Prompt tokens that each replica computes in a second, learned from its first outputs. A \
                 replica that falls behind its equals has a problem.",
            )
            .asks(
                gauge_by(metrics, "backend", "tokenweir_backend_prefill_tokens_per_second"),
                "{{backend}}",
            ),
        ],
    }
}
