//! Status and metrics of KV events.

use crate::backend_cache::CacheStatus;
use crate::learning::LearningCounts;
use serde::Serialize;
use tokenweir_api::BackendSummary;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::{BackendStatusSnapshot, StatusBlock, StatusSnapshot};
use tokenweir_kv_events::residency::StreamState;

impl StatusBlock for CacheStatus {
    const KEY: Option<&'static str> = Some("kv_events");

    fn summarize(&self, summary: &mut BackendSummary) {
        summary.kv_events = Some(self.state.to_owned());
    }
}

/// The knowledge of the gateway about prefix caches from KV events.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct KnowledgeStatus {
    /// Memory of the index that relates prompt texts to the blocks of KV events, in bytes.
    pub index_bytes: usize,
    /// Numbers of requests for which the gateway could, and could not, derive from KV events which
    /// KV cache block holds which part of the prompt.
    pub learning: LearningCounts,
}

impl StatusBlock for KnowledgeStatus {}

/// The metrics of KV events.
pub const ROWS: &[MetricDescriptor] = &[
    row(
        "tokenweir_backend_kv_events_state",
        "1 for the current state of the backend's KV events, 0 for the other states.",
        &[BACKEND, fixed("state", StreamState::NAMES)],
        Status(|status, emit| {
            for (backend, events) in with_kv_events(status) {
                for state in StreamState::NAMES {
                    emit(&[backend, state], f64::from(events.state == *state));
                }
            }
        }),
    ),
    of_backend_or_leaving(
        "tokenweir_backend_kv_blocks",
        "Different blocks in the backend's prefix cache on the GPU, by its KV events.",
        |backend| Some(cache(backend)?.blocks as f64),
    ),
    of_backend_or_leaving(
        "tokenweir_backend_kv_event_batches_total",
        "Batches of KV events of the backend that were applied.",
        |backend| Some(cache(backend)?.batches as f64),
    ),
    of_backend_or_leaving(
        "tokenweir_backend_kv_event_errors_total",
        "Failed connections for KV events, and batches that could not be applied.",
        |backend| Some(cache(backend)?.errors as f64),
    ),
    value(
        "tokenweir_kv_events_bytes",
        "Memory of the gateway for the contents of prefix caches, from KV events.",
        |status| {
            let contents: usize = with_kv_events(status).map(|(_, events)| events.bytes).sum();
            Some((contents + knowledge(status).index_bytes) as f64)
        },
    ),
    counts(
        "tokenweir_kv_events_requests_total",
        "Requests, by whether KV events showed which block has which text. unlearned: no events, or no certain match. dropped: the queue was full.",
        &[counted("result", |status| {
            let LearningCounts {
                learned,
                unlearned,
                dropped,
            } = knowledge(status).learning;
            vec![
                ("learned", learned),
                ("unlearned", unlearned),
                ("dropped", dropped),
            ]
        })],
    ),
];

fn knowledge(status: &StatusSnapshot) -> KnowledgeStatus {
    status.blocks.get_or_default()
}

fn cache(backend: &BackendStatusSnapshot) -> Option<CacheStatus> {
    backend.blocks.get_or_default()
}

/// Returns the name and the KV event status of each backend whose KV events the gateway receives.
fn with_kv_events(status: &StatusSnapshot) -> impl Iterator<Item = (&str, CacheStatus)> {
    status
        .backends
        .iter()
        .filter_map(|backend| Some((&*backend.backend, cache(backend)?)))
}
