//! The dashboard row about the KV cache: KV usage, preemptions and prefix cache hits.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::{engine_mean, engine_rate, rate_by};

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Cache efficiency",
        panels: [
            memory_panels(metrics),
            cached_token_panels(metrics),
            estimate_panels(metrics),
            vec![kv_block_times(metrics)],
        ]
        .concat(),
    }
}

/// The panels of the memory of the KV cache.
fn memory_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "KV usage",
            "percentunit",
            "Share of each backend's KV cache that requests occupy. High usage without \
             preemptions and without a queue is efficient.",
        )
        .with_gauge_by(metrics, "backend", "tokenweir_backend_kv_usage_ratio")
        .with_thresholds(Thresholds::Above(0.9, 0.97)),
        Panel::lines(
            "Preemptions",
            "short",
            "Requests per second that lost their KV blocks and are computed again. Good: 0.",
        )
        .with_rate_by(metrics, "backend", "tokenweir_backend_preemptions_total", ""),
    ]
}

/// The panels of the prompt tokens that engines found in a cache.
fn cached_token_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Prefix hit ratio",
            "percentunit",
            "Share of prompt tokens that each engine found in its cache. Chats with long \
             histories reach 60 % and more; single questions are near 0.",
        )
        .with_query(
            engine_mean(
                metrics,
                "tokenweir_engine_prefix_cache_hits_total",
                "tokenweir_engine_prefix_cache_queries_total",
            ),
            "{{backend}}",
        ),
        Panel::stacked(
            "Cached prompt tokens, by cache",
            "short",
            "Prompt tokens per second that each cache supplied: GPU memory (`device`), offload \
             to CPU memory or disk, or another instance. Empty: the engine does not report it.",
        )
        .with_query(
            format!(
                "sum by (source) ({})",
                engine_rate(
                    metrics,
                    "backend, source",
                    "tokenweir_engine_cached_prompt_tokens_total",
                )
            ),
            "{{source}}",
        ),
    ]
}

/// The panels of the estimates of the gateway: cached tokens, prefix retention and prefill speed.
fn estimate_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Cached tokens, predicted and reported",
            "short",
            "Prompt tokens per second that routing predicted to be cached, and those that the \
             engine reported. Equal lines are good. Only for responses that report cached \
             tokens (vLLM's --enable-prompt-tokens-details).",
        )
        .with_query(
            rate_by(metrics, "backend", "tokenweir_cached_tokens_predicted_total", ""),
            "{{backend}} predicted",
        )
        .with_query(
            rate_by(metrics, "backend", "tokenweir_cached_tokens_reported_total", ""),
            "{{backend}} reported",
        ),
        Panel::lines(
            "Prefix retention",
            "percentunit",
            "Learned share of each cache in which prefixes are retained. It falls when running \
             requests need the blocks.",
        )
        .with_gauge_by(metrics, "backend", "tokenweir_backend_prefix_retention_ratio"),
        Panel::lines(
            "Prefill speed",
            "short",
            "Prompt tokens per second that each backend computes, learned from its first \
             outputs. A backend that is slower than equal ones has a problem.",
        )
        .with_gauge_by(metrics, "backend", "tokenweir_backend_prefill_tokens_per_second"),
    ]
}

/// The means of the times of KV blocks. An eviction soon after the last use means that the cache is too small.
fn kv_block_times(metrics: &MetricCatalogue) -> Panel {
    let times = [
        ("lifetime", "{{backend}} lifetime"),
        ("idle", "{{backend}} idle before eviction"),
        ("reuse_gap", "{{backend}} between two uses"),
    ];
    let panel = Panel::lines(
        "KV block times, mean",
        "s",
        "Time from allocation to eviction, from the last use to eviction, and between two uses. A \
         cache is too small if the idle time is shorter than the time between two uses. Empty: \
         vLLM runs without --kv-cache-metrics.",
    );
    times.into_iter().fold(panel, |panel, (name, legend)| {
        let metric = |unit| format!("tokenweir_engine_kv_block_{name}_{unit}_total");
        panel.with_query(engine_mean(metrics, &metric("seconds"), &metric("count")), legend)
    })
}
