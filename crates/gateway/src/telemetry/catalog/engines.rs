//! Metrics that engines report on their own metrics pages. The gateway scrapes these pages for
//! routing and exports their values with the name of the backend, so that Prometheus need not
//! scrape the engines. A value that an engine does not report has no series.
//!
//! All gateways before a backend export the same values for the backend. A query over several gateways must
//! therefore aggregate with `max` and not with `sum`.

use crate::metric::prelude::*;
use tokenweir_engine::dialect::CACHE_SOURCES;

/// The label that says why requests wait in the queue of the engine, as vLLM reports it.
const WAITING_REASON: MetricLabel = fixed("reason", &["capacity", "deferred"]);
/// The label that names the cache from which cached prompt tokens came, as vLLM reports it.
const CACHE_SOURCE: MetricLabel = fixed("source", &CACHE_SOURCES);
/// The label that says whether input tokens or output tokens are counted.
const DIRECTION: MetricLabel = fixed("type", &["input", "output"]);

pub(super) const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_engine_tokens_total",
        "Tokens that the engine counted for the requests of all its clients. Input includes cached tokens.",
        &[BACKEND, DIRECTION],
        BackendValues(|backend, emit| {
            let Some(load) = &backend.engine else { return };
            emit(&["input"], load.prompt_tokens);
            emit(&["output"], load.generation_tokens);
        }),
    ),
    row(
        "tokenweir_backend_tokens_total",
        "Tokens of the backend's responses, as this gateway counted or estimated them. More than tokenweir_engine_tokens_total: a count is wrong.",
        &[BACKEND, DIRECTION],
        Record(|record, emit| {
            let Some(backend) = record.backend() else {
                return;
            };
            let input = record.observed.usage.input;
            for (direction, tokens) in [("input", input), ("output", record.output_tokens())] {
                if let Some(tokens) = tokens {
                    emit(&[backend.as_str(), direction], tokens as f64);
                }
            }
        }),
    ),
    of_backend(
        "tokenweir_engine_prefix_cache_queries_total",
        "Prompt tokens that the engine looked up in its prefix cache.",
        |backend| backend.engine?.prefix_queries,
    ),
    of_backend(
        "tokenweir_engine_prefix_cache_hits_total",
        "Prompt tokens that the engine found in its prefix cache.",
        |backend| backend.engine?.prefix_hits,
    ),
    row(
        "tokenweir_engine_cached_prompt_tokens_total",
        "Prompt tokens that the engine found in a cache, by the cache that supplied them.",
        &[BACKEND, CACHE_SOURCE],
        BackendValues(|backend, emit| {
            let Some(load) = &backend.engine else { return };
            for (source, tokens) in CACHE_SOURCES.iter().zip(load.cached_by_source) {
                emit(&[source], tokens);
            }
        }),
    ),
    of_backend(
        "tokenweir_engine_first_token_seconds_total",
        "Sum of the times to first token that the engine measured, from the arrival of each request.",
        |backend| backend.engine?.first_token_seconds,
    ),
    of_backend(
        "tokenweir_engine_first_tokens_total",
        "Requests whose time tokenweir_engine_first_token_seconds_total contains.",
        |backend| backend.engine?.first_tokens,
    ),
    of_backend(
        "tokenweir_engine_queue_seconds_total",
        "Sum of the times that requests waited in the engine's queue.",
        |backend| backend.engine?.queue_seconds,
    ),
    of_backend(
        "tokenweir_engine_queued_requests_total",
        "Requests whose time tokenweir_engine_queue_seconds_total contains.",
        |backend| backend.engine?.queued,
    ),
    of_backend(
        "tokenweir_engine_prefill_seconds_total",
        "Sum of the times that the engine computed prompts.",
        |backend| backend.engine?.prefill_seconds,
    ),
    of_backend(
        "tokenweir_engine_prefilled_requests_total",
        "Requests whose time tokenweir_engine_prefill_seconds_total contains.",
        |backend| backend.engine?.prefilled,
    ),
    of_backend(
        "tokenweir_engine_inter_token_seconds_total",
        "Sum of the times between two tokens of a request that the engine measured.",
        |backend| backend.engine?.gap_seconds,
    ),
    of_backend(
        "tokenweir_engine_inter_token_gaps_total",
        "Times between two tokens that tokenweir_engine_inter_token_seconds_total contains.",
        |backend| backend.engine?.gaps,
    ),
    of_backend(
        "tokenweir_engine_kv_block_lifetime_seconds_total",
        "Sum of the times from the allocation of a KV block to its eviction (vLLM: --kv-cache-metrics).",
        |backend| backend.engine?.kv_blocks.lifetime_seconds,
    ),
    of_backend(
        "tokenweir_engine_kv_block_lifetime_count_total",
        "KV blocks whose time tokenweir_engine_kv_block_lifetime_seconds_total contains.",
        |backend| backend.engine?.kv_blocks.lifetimes,
    ),
    of_backend(
        "tokenweir_engine_kv_block_idle_seconds_total",
        "Sum of the times from the last use of a KV block to its eviction (vLLM: --kv-cache-metrics).",
        |backend| backend.engine?.kv_blocks.idle_seconds,
    ),
    of_backend(
        "tokenweir_engine_kv_block_idle_count_total",
        "KV blocks whose time tokenweir_engine_kv_block_idle_seconds_total contains.",
        |backend| backend.engine?.kv_blocks.idle_times,
    ),
    of_backend(
        "tokenweir_engine_kv_block_reuse_gap_seconds_total",
        "Sum of the times between two uses of a KV block (vLLM: --kv-cache-metrics).",
        |backend| backend.engine?.kv_blocks.reuse_gap_seconds,
    ),
    of_backend(
        "tokenweir_engine_kv_block_reuse_gap_count_total",
        "Times between two uses of a KV block that tokenweir_engine_kv_block_reuse_gap_seconds_total contains.",
        |backend| backend.engine?.kv_blocks.reuse_gaps,
    ),
    row(
        "tokenweir_engine_waiting_requests",
        "Requests waiting in the engine: for capacity, or deferred by a passing constraint such as a LoRA adapter.",
        &[BACKEND, WAITING_REASON],
        BackendValues(|backend, emit| {
            let Some(load) = &backend.engine else { return };
            emit(&["capacity"], load.waiting_capacity);
            emit(&["deferred"], load.waiting_deferred);
        }),
    ),
    of_backend(
        "tokenweir_engine_swapped_requests",
        "Requests whose KV blocks the engine has moved to CPU memory (vLLM with engine V0).",
        |backend| backend.engine?.swapped,
    ),
    of_backend(
        "tokenweir_engine_cpu_cache_usage_ratio",
        "Share of the CPU KV cache in use (vLLM with engine V0).",
        |backend| backend.engine?.cpu_cache_usage,
    ),
    of_backend(
        "tokenweir_engine_kv_capacity_tokens",
        "Capacity of the engine's KV cache in tokens.",
        |backend| backend.engine?.capacity().map(|tokens| tokens as f64),
    ),
    of_backend(
        "tokenweir_engine_admission_rejections_total",
        "Requests that the engine rejected because its own queue was full.",
        |backend| backend.engine?.admission_rejections,
    ),
    of_backend(
        "tokenweir_engine_corrupted_requests_total",
        "Requests with NaN in the logits of the engine.",
        |backend| backend.engine?.corrupted,
    ),
    of_backend(
        "tokenweir_engine_drafts_total",
        "Drafts that speculative decoding proposed.",
        |backend| backend.engine?.drafts,
    ),
    of_backend(
        "tokenweir_engine_draft_tokens_total",
        "Tokens that speculative decoding proposed.",
        |backend| backend.engine?.draft_tokens,
    ),
    of_backend(
        "tokenweir_engine_accepted_tokens_total",
        "Proposed tokens of speculative decoding that the engine accepted.",
        |backend| backend.engine?.accepted_tokens,
    ),
    of_backend(
        "tokenweir_engine_restarts_total",
        "Restarts of the backend's process that this gateway detected.",
        |backend| Some(backend.restarts as f64),
    ),
];
