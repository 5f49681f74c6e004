//! Routing: how good its predictions are, what it has learned of the replicas, and what other
//! policies would have done.

use super::super::metric::{AGREEMENTS, Kind, Label, Read, Row};
use super::replicas::by_backend;
use super::{ERROR_BOUNDS, PREDICTION_BOUNDS};
use tokenweir_core::record::{RequestRecord, Shadow};

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "tokenweir_route_prediction_error_seconds",
        help: "Streams: how far the predicted time from sending to the first output was off, to either side.",
        kind: Kind::Histogram(ERROR_BOUNDS),
        labels: &[Label::Backend],
        read: Read::FirstOutput(|record, emit| {
            if let (Some((actual, predicted)), Some(backend)) = ttft(record) {
                emit(&[backend], (actual - predicted).abs());
            }
        }),
    },
    Row {
        name: "tokenweir_route_prediction_ratio",
        help: "Streams: that time / what it was predicted to be. Above 1: slower than predicted.",
        kind: Kind::Histogram(PREDICTION_BOUNDS),
        labels: &[Label::Backend],
        read: Read::FirstOutput(|record, emit| {
            if let (Some((actual, predicted)), Some(backend)) = ttft(record)
                && predicted > 0.0
            {
                emit(&[backend], actual / predicted);
            }
        }),
    },
    Row {
        name: "tokenweir_cached_tokens_predicted_total",
        help: "Prompt tokens that were believed to be cached, of answers that tell how many were.",
        kind: Kind::Counter,
        labels: &[Label::Backend],
        read: Read::Record(|record, emit| {
            if let (Some((_, predicted)), Some(backend)) = cached(record) {
                emit(&[backend], predicted.max(0.0));
            }
        }),
    },
    Row {
        name: "tokenweir_cached_tokens_reported_total",
        help: "Prompt tokens of the same answers that were cached, as the engine counted them.",
        kind: Kind::Counter,
        labels: &[Label::Backend],
        read: Read::Record(|record, emit| {
            if let (Some((reported, _)), Some(backend)) = cached(record) {
                emit(&[backend], reported as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_backend_confidence_ratio",
        help: "What the replica's last word still counts for: 1 when it is new, 0 if there is none.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_backend(vitals, emit, |backend| Some(backend.learned.certainty));
        }),
    },
    Row {
        name: "tokenweir_backend_prefill_tokens_per_second",
        help: "Prompt tokens that the replica computes in a second, learned from its first outputs.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_backend(vitals, emit, |backend| Some(backend.learned.prefill_tokens_per_second));
        }),
    },
    Row {
        name: "tokenweir_backend_prefill_backlog_tokens",
        help: "Prompt tokens that the replica is believed to have to compute before those of a new request.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_backend(vitals, emit, |backend| Some(backend.learned.prefill_backlog_tokens));
        }),
    },
    Row {
        name: "tokenweir_backend_prefix_retention_ratio",
        help: "Share of the replica's KV cache in which it keeps what was sent, learned from its counts.",
        kind: Kind::Gauge,
        labels: &[Label::Backend],
        read: Read::Vitals(|vitals, emit| {
            by_backend(vitals, emit, |backend| Some(backend.learned.prefix_retention));
        }),
    },
    Row {
        name: "tokenweir_prefix_index_bytes",
        help: "Memory of the indexes of what was sent to the replicas.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| {
            let bytes = vitals.backends.iter().map(|backend| backend.learned.prefix_index_bytes);
            emit(&[], (bytes.sum::<usize>() + vitals.short_list_bytes) as f64);
        }),
    },
    Row {
        name: "tokenweir_shadow_decisions_total",
        help: "Decisions of policies in routing.shadow, by whether they would have chosen the same replica.",
        kind: Kind::Counter,
        labels: &[Label::Policy, Label::Agreement],
        read: Read::Record(|record, emit| {
            let [same, different] = AGREEMENTS;
            for shadow in shadows(record) {
                emit(&[shadow.policy, if shadow.is_same { same } else { different }], 1.0);
            }
        }),
    },
    Row {
        name: "tokenweir_shadow_regret_seconds_total",
        help: "Time to first token that the choices of a policy in shadow would have cost. Predicted, not measured.",
        kind: Kind::Counter,
        labels: &[Label::Policy],
        read: Read::Record(|record, emit| {
            for shadow in shadows(record).filter(|shadow| shadow.regret > 0.0) {
                emit(&[shadow.policy], shadow.regret);
            }
        }),
    },
    Row {
        name: "tokenweir_shadow_saving_seconds_total",
        help: "Time to first token that the choices of a policy in shadow would have saved. Predicted, not measured.",
        kind: Kind::Counter,
        labels: &[Label::Policy],
        read: Read::Record(|record, emit| {
            for shadow in shadows(record).filter(|shadow| shadow.regret < 0.0) {
                emit(&[shadow.policy], -shadow.regret);
            }
        }),
    },
];

fn ttft(record: &RequestRecord) -> (Option<(f64, f64)>, Option<&str>) {
    (record.actual_and_predicted_ttft(), backend(record))
}

fn cached(record: &RequestRecord) -> (Option<(u64, f64)>, Option<&str>) {
    (record.reported_and_predicted_cached(), backend(record))
}

fn backend(record: &RequestRecord) -> Option<&str> {
    record.backend().map(tokenweir_core::record::BackendId::as_str)
}

/// A sum takes no infinity.
fn shadows(record: &RequestRecord) -> impl Iterator<Item = &Shadow> {
    let shadows = record.decision.iter().flat_map(|decision| &decision.shadow);
    shadows.filter(|shadow| shadow.regret.is_finite())
}
