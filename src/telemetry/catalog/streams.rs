//! Latency and tokens, as they passed.

use super::super::metric::{Kind, Label, MARKS, Read, Row, TOKEN_TYPES};
use super::{DURATION_BOUNDS, PHASE_BOUNDS, TTFT_BOUNDS, by_model_and_backend};
use tokenweir_core::record::{Outcome, Phases, UsageSource};
use tokenweir_core::spread::{Gap, Scale, TokenCount};

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "gen_ai_server_time_to_first_token_seconds",
        help: "Streams: request head read to the first generated output, in any channel.",
        kind: Kind::Histogram(TTFT_BOUNDS),
        labels: &[Label::Model, Label::Backend, Label::Tier],
        read: Read::FirstOutput(|record, emit| {
            if let (Some(ttft), Some(backend)) = (record.ttft(), record.backend()) {
                let labels = [record.model.as_str(), backend.as_str(), record.tier.as_str()];
                emit(&labels, ttft.as_secs_f64());
            }
        }),
    },
    Row {
        name: "tokenweir_time_to_mark_seconds",
        help: "Streams: request head read to the response head, the first event, the first output that is no reasoning.",
        kind: Kind::Histogram(TTFT_BOUNDS),
        labels: &[Label::Model, Label::Mark],
        read: Read::Record(|record, emit| {
            for (mark, at) in MARKS.iter().zip(record.marks()) {
                if let Some(at) = at {
                    emit(&[record.model.as_str(), mark], at.as_secs_f64());
                }
            }
        }),
    },
    Row {
        name: "gen_ai_server_time_per_output_token_seconds",
        help: "Streams with an exact count: (last output - first output) / (output tokens - 1).",
        kind: Kind::Histogram(Gap::BOUNDS),
        labels: &[Label::Model, Label::Backend],
        read: Read::Record(|record, emit| by_model_and_backend(record, record.tpot(), emit)),
    },
    Row {
        name: "tokenweir_inter_chunk_seconds",
        help: "Time from one event with output to the next of the same choice, as it arrived from the replica.",
        kind: Kind::Histogram(Gap::BOUNDS),
        labels: &[Label::Model, Label::Backend],
        read: Read::Spread(|record| Some(record.observed.gaps.parts())),
    },
    Row {
        name: "tokenweir_inter_token_seconds",
        help: "The same time shared among the tokens that it brought, where they are known.",
        kind: Kind::Histogram(Gap::BOUNDS),
        labels: &[Label::Model, Label::Backend],
        read: Read::Spread(|record| Some(record.observed.itl.parts())),
    },
    Row {
        name: "tokenweir_chunk_tokens",
        help: "Tokens in each event with output, where they are known. Above 1: speculative decoding, or merged events.",
        kind: Kind::Histogram(TokenCount::BOUNDS),
        labels: &[Label::Model, Label::Backend],
        read: Read::Spread(|record| Some(record.observed.chunk_tokens.parts())),
    },
    Row {
        name: "tokenweir_client_write_stall_seconds",
        help: "Answers: how long the client did not take what had come for it. Never part of the times above.",
        kind: Kind::Histogram(DURATION_BOUNDS),
        labels: &[],
        read: Read::Record(|record, emit| {
            if record.timings.headers.is_some() {
                emit(&[], record.observed.write_stall.as_secs_f64());
            }
        }),
    },
    Row {
        name: "tokenweir_phase_seconds",
        help: "Where the time of a stream went. Estimated: by what other requests of the replica took.",
        kind: Kind::Histogram(PHASE_BOUNDS),
        labels: &[Label::Backend, Label::LifePhase, Label::Certainty],
        read: Read::Record(|record, emit| {
            let Some(backend) = record.backend() else { return };
            for span in Phases::of(record).iter() {
                let certainty = if span.is_estimated { "estimated" } else { "exact" };
                let labels = [backend.as_str(), span.phase.as_str(), certainty];
                emit(&labels, span.took.as_secs_f64());
            }
        }),
    },
    Row {
        name: "tokenweir_tokens_total",
        help: "Tokens as the engine counted them. Cached tokens are part of the input, reasoning of the output.",
        kind: Kind::Counter,
        labels: &[Label::Model, Label::TokenType, Label::TokenSource, Label::Tier],
        read: Read::Record(|record, emit| {
            let is_final = record.observed.usage_source == UsageSource::Exact;
            let source = if is_final { "exact" } else { "continuous" };
            for (kind, count) in TOKEN_TYPES.iter().zip(record.counted_tokens()) {
                if let Some(count) = count {
                    let labels = [record.model.as_str(), kind, source, record.tier.as_str()];
                    emit(&labels, count as f64);
                }
            }
        }),
    },
    Row {
        name: "tokenweir_estimated_output_tokens_total",
        help: "Output of answers that nobody counted, estimated from their events.",
        kind: Kind::Counter,
        labels: &[Label::Model],
        read: Read::Record(|record, emit| {
            let is_estimated = record.observed.usage_source == UsageSource::Estimated;
            if let Some(tokens) = record.output_tokens().filter(|_| is_estimated) {
                emit(&[record.model.as_str()], tokens as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_wasted_tokens_total",
        help: "Output tokens of answers that nobody received whole.",
        kind: Kind::Counter,
        labels: &[Label::Model, Label::Waste, Label::UsageSource],
        read: Read::Record(|record, emit| {
            if let Some(tokens) = record.wasted_tokens() {
                let is_cancelled = record.outcome == Outcome::Cancelled;
                let reason = if is_cancelled { "cancelled" } else { "failed" };
                let source = record.observed.usage_source.as_str();
                emit(&[record.model.as_str(), reason, source], tokens as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_usage_events_total",
        help: "Usage events that the gateway asked for and clients did not, by what became of them.",
        kind: Kind::Counter,
        labels: &[Label::UsageEvent],
        read: Read::Record(|record, emit| {
            if let Some(event) = record.observed.usage_event {
                emit(&[event.as_str()], 1.0);
            }
        }),
    },
];
