//! Metrics of the latency and the tokens of responses. The latency metrics cover streams. The token counters
//! and the write stall metric also cover other responses.

use super::requests::{DURATION_BOUNDS, GEN_AI_OPERATION, TOKEN_USAGE_BOUNDS};
use crate::metric::prelude::*;
use tokenweir_protocol::histogram::{BucketLayout, ChunkTransit, OutputGap, TokenCount};
use tokenweir_protocol::openai::Usage;
use tokenweir_request::record::{Outcome, RequestPhase, UsageEventOutcome, UsageSource};

/// Bucket bounds of time to first token, in seconds: the bounds of OpenTelemetry and vLLM, and
/// further bounds around common objectives.
const TTFT_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5,
    2.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
];
/// Bucket bounds of the duration of a phase of a request, in seconds: from 10 µs, for the phase in
/// the gateway, to 10 minutes, for decode.
const PHASE_BOUNDS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

pub(super) const ROWS: &[MetricDescriptor] = &[
    histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "Streams: time from the request head to the first generated output, in any channel.",
        TTFT_BOUNDS,
        &[MODEL, BACKEND, TIER],
        FirstOutput(|record| seconds(record.ttft())),
    ),
    histogram(
        "tokenweir_time_to_response_headers_seconds",
        "Streams: time from the request head to the head of the response.",
        TTFT_BOUNDS,
        &[MODEL],
        RecordValue(|record| seconds(record.stream_time_to(record.timings.headers))),
    ),
    histogram(
        "tokenweir_time_to_first_event_seconds",
        "Streams: time from the request head to the first event of any kind.",
        TTFT_BOUNDS,
        &[MODEL],
        RecordValue(|record| seconds(record.stream_time_to(record.timings.first_event))),
    ),
    histogram(
        "tokenweir_time_to_first_answer_seconds",
        "Streams: time from the request head to the first output that is not reasoning.",
        TTFT_BOUNDS,
        &[MODEL],
        RecordValue(|record| seconds(record.stream_time_to(record.timings.first_answer))),
    ),
    histogram(
        "tokenweir_time_to_first_channel_output_seconds",
        "Streams: time from the request head to the first reasoning, answer text or tool call.",
        TTFT_BOUNDS,
        &[MODEL, fixed("channel", &["reasoning", "text", "tool_call"])],
        Record(|record, emit| {
            let timings = &record.timings;
            for (channel, first) in [
                ("reasoning", timings.first_reasoning),
                ("text", timings.first_text),
                ("tool_call", timings.first_tool_call),
            ] {
                if let Some(took) = record.stream_time_to(first) {
                    emit(&[record.model.as_str(), channel], took.as_secs_f64());
                }
            }
        }),
    ),
    histogram(
        "gen_ai_server_time_per_output_token_seconds",
        "Streams with an exact token count: (last output - first token) / (output tokens - 1).",
        OutputGap::BOUNDS,
        &[MODEL, BACKEND],
        RecordValue(|record| seconds(record.tpot())),
    ),
    histogram(
        "tokenweir_inter_chunk_latency_seconds",
        "Time from one event with output to the next of the same choice.",
        OutputGap::BOUNDS,
        &[MODEL, BACKEND],
        RecordHistogram(|record| record.observed.inter_chunk_latency.snapshot()),
    ),
    histogram(
        "tokenweir_inter_token_latency_seconds",
        "Time from one event with output to the next, divided by the tokens of the later event. Only events with a known number.",
        OutputGap::BOUNDS,
        &[MODEL, BACKEND],
        RecordHistogram(|record| record.observed.inter_token_latency.snapshot()),
    ),
    histogram(
        "tokenweir_chunk_tokens",
        "Tokens per event with output, where their number is known. Above 1: speculative decoding or merged events.",
        TokenCount::BOUNDS,
        &[MODEL, BACKEND],
        RecordHistogram(|record| record.observed.chunk_tokens.snapshot()),
    ),
    histogram(
        "tokenweir_chunk_transit_seconds",
        "Streams over HTTP/1.1: time from reading bytes of the backend to writing them, unless the client delays it.",
        ChunkTransit::BOUNDS,
        &[],
        RecordHistogram(|record| record.observed.chunk_transit.snapshot()),
    ),
    histogram(
        "tokenweir_client_write_stall_seconds",
        "Time during which the client did not read a response that had data to send.",
        DURATION_BOUNDS,
        &[MODEL],
        RecordValue(|record| {
            record
                .timings
                .headers
                .map(|_| record.observed.write_stall.as_secs_f64())
        }),
    ),
    histogram(
        "tokenweir_phase_seconds",
        "Time of a stream, by phase. Source exact: reported by the backend.",
        PHASE_BOUNDS,
        &[
            BACKEND,
            fixed("phase", RequestPhase::NAMES),
            fixed("source", &["exact", "estimated"]),
        ],
        Record(|record, emit| {
            let Some(backend) = record.backend() else {
                return;
            };
            for span in record.phases().iter() {
                let source = if span.is_estimated {
                    "estimated"
                } else {
                    "exact"
                };
                let labels = [backend.as_str(), span.phase.as_str(), source];
                emit(&labels, span.took.as_secs_f64());
            }
        }),
    ),
    row(
        "tokenweir_tokens_total",
        "Tokens as counted by the engine. Cached tokens are part of the input, reasoning tokens part of the output.",
        &[
            MODEL,
            TOKEN_TYPE,
            fixed("source", &["exact", "continuous"]),
            TIER,
        ],
        Record(|record, emit| {
            let is_final = record.observed.usage_source == UsageSource::Exact;
            let source = if is_final { "exact" } else { "continuous" };
            let Usage {
                input,
                output,
                cached,
                reasoning,
                ..
            } = record.engine_token_counts();
            let counts = [input, output, cached, reasoning];
            for (kind, count) in TOKEN_TYPES.iter().zip(counts) {
                if let Some(count) = count {
                    let labels = [record.model.as_str(), kind, source, record.tier.as_str()];
                    emit(&labels, count as f64);
                }
            }
        }),
    ),
    tokens_of_conventions(
        "gen_ai_client_inference_operation_input_tokens",
        "Input tokens per inference request. Only with OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental.",
        TOKEN_USAGE_BOUNDS,
        RecordValue(|record| as_value(record.final_token_counts().input)),
    ),
    tokens_of_conventions(
        "gen_ai_client_inference_operation_output_tokens",
        "Output tokens per inference request. Only with OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental.",
        TOKEN_USAGE_BOUNDS,
        RecordValue(|record| as_value(record.final_token_counts().output)),
    ),
    tokens_of_conventions(
        "gen_ai_client_inference_usage_input_tokens_total",
        "Input tokens of inference requests. Only with OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental.",
        &[],
        RecordValue(|record| as_value(record.final_token_counts().input)),
    ),
    tokens_of_conventions(
        "gen_ai_client_inference_usage_output_tokens_total",
        "Output tokens of inference requests. Only with OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental.",
        &[],
        RecordValue(|record| as_value(record.final_token_counts().output)),
    ),
    tokens_of_conventions(
        "gen_ai_client_inference_usage_cache_read_input_tokens_total",
        "Input tokens that came from the prefix cache. Only with OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental.",
        &[],
        RecordValue(|record| as_value(record.final_token_counts().cached)),
    ),
    tokens_of_conventions(
        "gen_ai_client_inference_usage_cache_write_input_tokens_total",
        "Input tokens that were written to the prefix cache. Only with OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental.",
        &[],
        RecordValue(|record| as_value(record.final_token_counts().cache_created)),
    ),
    tokens_of_conventions(
        "gen_ai_client_inference_usage_reasoning_output_tokens_total",
        "Output tokens that are reasoning. Only with OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental.",
        &[],
        RecordValue(|record| as_value(record.final_token_counts().reasoning)),
    ),
    row(
        "tokenweir_estimated_output_tokens_total",
        "Output tokens of responses without a token count, estimated from their events.",
        &[MODEL],
        RecordValue(|record| {
            let is_estimated = record.observed.usage_source == UsageSource::Estimated;
            if is_estimated {
                as_value(record.output_tokens())
            } else {
                None
            }
        }),
    ),
    row(
        "tokenweir_wasted_tokens_total",
        "Tokens of responses that the client did not receive completely, and of prompts that a failover computed again.",
        &[
            MODEL,
            fixed("reason", &["cancelled", "failed", "failover"]),
            fixed("type", &["input", "output"]),
            // The usage source `missing` is left out, because its tokens are not known and not counted.
            computed("source", || {
                let counted = UsageSource::ALL
                    .into_iter()
                    .filter(|it| *it != UsageSource::Missing);
                counted.map(UsageSource::as_str).collect()
            }),
        ],
        Record(|record, emit| {
            let wasted = record.wasted_tokens();
            let is_cancelled = record.outcome == Outcome::Cancelled;
            let reason = if is_cancelled { "cancelled" } else { "failed" };
            let source = record.observed.usage_source.as_str();
            for (reason, kind, tokens) in [
                (reason, "output", wasted.output),
                (reason, "input", wasted.input),
                ("failover", "input", wasted.recomputed),
            ] {
                if tokens > 0 {
                    emit(
                        &[record.model.as_str(), reason, kind, source],
                        tokens as f64,
                    );
                }
            }
        }),
    ),
    row(
        "tokenweir_usage_events_total",
        "Usage events that the gateway requested although the client did not, by result.",
        &[fixed("result", UsageEventOutcome::NAMES)],
        RecordEvent(|record| record.observed.usage_event.map(UsageEventOutcome::as_str)),
    ),
];

/// Builds the catalogue row of a metric of the GenAI conventions that counts tokens of requests: a
/// histogram with these bounds, or a counter if `bounds` is empty.
const fn tokens_of_conventions(
    name: &'static str,
    help: &'static str,
    bounds: &'static [f64],
    read: MetricSource,
) -> MetricDescriptor {
    let labels = &[MODEL, GEN_AI_OPERATION];
    match bounds {
        [] => row(name, help, labels, read),
        bounds => histogram(name, help, bounds, labels, read),
    }
}

fn as_value(count: Option<u64>) -> Option<f64> {
    count.map(|tokens| tokens as f64)
}
