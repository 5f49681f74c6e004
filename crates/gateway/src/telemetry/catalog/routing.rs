//! Metrics of routing: accuracy of the predictions, estimates of backends, and decisions of shadow
//! policies.

use super::super::metric::{MetricDescriptor, MetricLabel, MetricSource};
use super::super::status::StatusSnapshot;
use crate::backend::kv_events::{CacheStatus, LearningCounts};
use crate::backend::peers::PeerExchangeStatus;
use tokenweir_kv_events::residency::StreamState;
use tokenweir_request::record::{RequestRecord, ShadowDecision};
use tokenweir_routing::PolicyKind;

/// Bucket bounds of the absolute error of a predicted time to first output, in seconds.
const PREDICTION_ERROR_BOUNDS: &[f64] =
    &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Bucket bounds of the actual time to first output divided by the predicted time.
const PREDICTION_RATIO_BOUNDS: &[f64] = &[0.1, 0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 4.0, 10.0];

/// The label with the name of a routing policy: [`PolicyKind::as_str`].
const POLICY: MetricLabel = MetricLabel::fixed("policy", || PolicyKind::NAMES.to_vec());

pub(super) const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor::histogram(
        "tokenweir_routing_prediction_error_seconds",
        "Streams: absolute difference between actual and predicted time from sending to the first output.",
        PREDICTION_ERROR_BOUNDS,
        &[MetricLabel::BACKEND],
        MetricSource::FirstOutput(|record| {
            let (actual, predicted) = record.actual_and_predicted_ttft()?;
            Some((actual - predicted).abs())
        }),
    ),
    MetricDescriptor::histogram(
        "tokenweir_routing_prediction_ratio",
        "Streams: actual / predicted time from sending to the first output.",
        PREDICTION_RATIO_BOUNDS,
        &[MetricLabel::BACKEND],
        MetricSource::FirstOutput(|record| {
            let (actual, predicted) = record.actual_and_predicted_ttft()?;
            (predicted > 0.0).then_some(actual / predicted)
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_cached_tokens_predicted_total",
        "Prompt tokens predicted to be cached, for responses that report their cached tokens.",
        &[MetricLabel::BACKEND],
        MetricSource::RecordValue(|record| {
            let (_, predicted) = record.reported_and_predicted_cached_tokens()?;
            Some(predicted.max(0.0))
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_cached_tokens_reported_total",
        "Prompt tokens that the engine reported as cached, for responses with a predicted number.",
        &[MetricLabel::BACKEND],
        MetricSource::RecordValue(|record| {
            let (reported, _) = record.reported_and_predicted_cached_tokens()?;
            Some(reported as f64)
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_prefix_cache_regret_tokens_total",
        "Prompt tokens that the pick of the policy, or of a shadow policy, had to compute although another candidate probably had them cached.",
        &[POLICY],
        MetricSource::Record(|record, emit| {
            for (policy, tokens) in record.decision.iter().flat_map(|it| it.cache_regrets()) {
                emit(&[policy], tokens);
            }
        }),
    ),
    MetricDescriptor::of_backend(
        "tokenweir_backend_load_freshness_ratio",
        "Weight of the last scraped load in predictions, 0 to 1.",
        |backend| Some(backend.learned.freshness),
    ),
    MetricDescriptor::of_backend(
        "tokenweir_backend_prefill_tokens_per_second",
        "Prompt tokens that the backend computes per second, learned from its times to first output.",
        |backend| Some(backend.learned.prefill_tokens_per_second),
    ),
    MetricDescriptor::of_backend(
        "tokenweir_backend_prefill_backlog_tokens",
        "Predicted prompt tokens that the backend must compute before those of a new request.",
        |backend| Some(backend.learned.prefill_backlog_tokens),
    ),
    MetricDescriptor::value(
        "tokenweir_prefix_index_bytes",
        "Memory of the prefix indexes of all backends.",
        |status| {
            let bytes = status.backends.iter().map(|backend| backend.learned.prefix_index_bytes);
            Some((bytes.sum::<usize>() + status.short_list_bytes) as f64)
        },
    ),
    MetricDescriptor::new(
        "tokenweir_backend_kv_events_state",
        "1 for the current state of the backend's KV events, 0 for the other states.",
        &[MetricLabel::BACKEND, MetricLabel::fixed("state", || StreamState::NAMES.to_vec())],
        MetricSource::Status(|status, emit| {
            for (backend, events) in with_kv_events(status) {
                for state in StreamState::NAMES {
                    emit(&[backend, state], f64::from(events.state == *state));
                }
            }
        }),
    ),
    MetricDescriptor::of_backend_or_leaving(
        "tokenweir_backend_kv_blocks",
        "Different blocks in the backend's prefix cache on the GPU, by its KV events.",
        |backend| Some(backend.kv_events?.blocks as f64),
    ),
    MetricDescriptor::of_backend_or_leaving(
        "tokenweir_backend_kv_event_batches_total",
        "Batches of KV events of the backend that were applied.",
        |backend| Some(backend.kv_events?.batches as f64),
    ),
    MetricDescriptor::of_backend_or_leaving(
        "tokenweir_backend_kv_event_errors_total",
        "Failed connections for KV events, and batches that could not be applied.",
        |backend| Some(backend.kv_events?.errors as f64),
    ),
    MetricDescriptor::value(
        "tokenweir_kv_events_bytes",
        "Memory of the gateway for the contents of prefix caches, from KV events.",
        |status| {
            let contents: usize = with_kv_events(status).map(|(_, events)| events.bytes).sum();
            Some((contents + status.kv_index_bytes) as f64)
        },
    ),
    MetricDescriptor::counts(
        "tokenweir_kv_events_requests_total",
        "Requests, by whether KV events showed which block has which text. unlearned: no events, or no certain match. dropped: the queue was full.",
        &[MetricLabel::counted("result", |status| {
            let LearningCounts { learned, unlearned, dropped, .. } = status.kv_learning;
            vec![("learned", learned), ("unlearned", unlearned), ("dropped", dropped)]
        })],
    ),
    MetricDescriptor::value(
        "tokenweir_kv_events_outlines_total",
        "KV events from which this gateway learned a prompt that another gateway sent.",
        |status| Some(status.kv_learning.outlines as f64),
    ),
    MetricDescriptor::value(
        "tokenweir_peer_exchange_connected",
        "1 while the gateway is connected to the message bus.",
        |status| status.peer_exchange.as_ref().map(|exchange| f64::from(exchange.connected)),
    ),
    MetricDescriptor::value(
        "tokenweir_peer_gateways",
        "Other gateways that sent a message within the last 5 s.",
        |status| status.peer_exchange.as_ref().map(|exchange| exchange.peers as f64),
    ),
    MetricDescriptor::new(
        "tokenweir_peer_messages_total",
        "Messages of the exchange with other gateways, by result.",
        &[MetricLabel::fixed("result", PeerExchangeStatus::message_results)],
        MetricSource::Status(|status, emit| {
            let results = status.peer_exchange.iter().flat_map(|exchange| &exchange.messages);
            results.for_each(|(result, count)| emit(&[result], *count as f64));
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_peer_decisions_total",
        "Routing decisions that the gateways exchange, by result. dropped: the queue was full, or the message bus not connected.",
        &[MetricLabel::fixed("result", || PeerExchangeStatus::DECISION_RESULTS.to_vec())],
        MetricSource::Status(|status, emit| {
            let results = status.peer_exchange.iter().flat_map(|exchange| &exchange.decisions);
            results.for_each(|(result, count)| emit(&[result], *count as f64));
        }),
    ),
    MetricDescriptor::value(
        "tokenweir_peer_sent_bytes_total",
        "Bytes of the messages that the gateway sent to other gateways.",
        |status| status.peer_exchange.as_ref().map(|exchange| exchange.sent_bytes as f64),
    ),
    MetricDescriptor::new(
        "tokenweir_shadow_decisions_total",
        "Decisions of the policies in routing.shadow, by whether they chose the same backend.",
        &[POLICY, MetricLabel::fixed("result", || vec!["same", "different"])],
        MetricSource::Record(|record, emit| {
            for shadow in finite_shadows(record) {
                emit(&[shadow.policy, if shadow.is_same { "same" } else { "different" }], 1.0);
            }
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_shadow_regret_seconds_total",
        "Predicted extra time to first token if the choices of a shadow policy had been used.",
        &[POLICY],
        MetricSource::Record(|record, emit| {
            for shadow in finite_shadows(record).filter(|shadow| shadow.regret > 0.0) {
                emit(&[shadow.policy], shadow.regret);
            }
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_shadow_saving_seconds_total",
        "Predicted saved time to first token if the choices of a shadow policy had been used.",
        &[POLICY],
        MetricSource::Record(|record, emit| {
            for shadow in finite_shadows(record).filter(|shadow| shadow.regret < 0.0) {
                emit(&[shadow.policy], -shadow.regret);
            }
        }),
    ),
];

/// Returns the name and the KV event status of each backend whose KV events the gateway receives.
fn with_kv_events(status: &StatusSnapshot) -> impl Iterator<Item = (&str, CacheStatus)> {
    status.backends.iter().filter_map(|backend| Some((&*backend.backend, backend.kv_events?)))
}

/// Returns the shadow decisions of a request that have a finite regret. The regret is the predicted
/// TTFT of the choice of the shadow policy minus that of the selected backend. An infinite regret
/// would make the sum of a metric infinite.
fn finite_shadows(record: &RequestRecord) -> impl Iterator<Item = &ShadowDecision> {
    let decisions = record.decision.iter().flat_map(|decision| &decision.shadow_decisions);
    decisions.filter(|shadow| shadow.regret.is_finite())
}
