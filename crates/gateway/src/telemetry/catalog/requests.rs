//! Metrics of requests: counts, terminations, rejections, queue waits and model refusals.

use crate::metric::prelude::*;
use tokenweir_protocol::openai::{Api, FinishReason, Usage};
use tokenweir_request::error;
use tokenweir_request::record::{
    Outcome, RequestPhase, RequestRecord, SlowCause, TerminationInitiator, TerminationReason, Tier,
    UninspectedReason,
};
use tokenweir_routing::admission::DEFAULT_CLASS;

/// Bucket bounds of the duration of a whole request, in seconds.
pub(super) const DURATION_BOUNDS: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
];
/// Bucket bounds of the time that the gateway itself adds to a request, in seconds.
const OVERHEAD_BOUNDS: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.5,
];
/// Bucket bounds of the tokens of a request: the bounds of the OpenTelemetry conventions up to one million, and
/// from 64 on the powers of two between them, where most prompts and outputs are.
pub(super) const TOKEN_USAGE_BOUNDS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1_024.0,
    2_048.0,
    4_096.0,
    8_192.0,
    16_384.0,
    32_768.0,
    65_536.0,
    131_072.0,
    262_144.0,
    1_048_576.0,
];
/// Bucket bounds of the wait in the admission queue, in seconds.
const QUEUE_WAIT_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// Bucket bounds of the number of output tokens divided by the `max_tokens` of the request.
const RATIO_BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0];

/// The operation of an inference request ([`Api::operation`]), with the label name of the OpenTelemetry
/// conventions. Only `chat` has series from the start, because most models have no other operation. The series
/// of other operations are created at their first request.
pub(super) const GEN_AI_OPERATION: MetricLabel = variable(
    "gen_ai_operation_name",
    |_| vec![Api::Chat.operation().to_owned()],
    "",
)
.described_by(|| {
    let mut operations = Api::ALL
        .map(|api| format!("`{}`", api.operation()))
        .to_vec();
    operations.sort_unstable();
    operations.dedup();
    format!(
        "{}; all but `chat` get their series with the first request",
        operations.join(" ")
    )
})
.of_request(|record| record.api.map(Api::operation));
const ERROR_TYPE: MetricLabel = variable(
    "error_type",
    |_| vec![String::new()],
    "empty on success, `cancelled` for a client that disconnected, else the failure, or `_OTHER`",
)
.of_request(|record| Some(record.error_type_label()));
/// The outcome label of the request duration. Only `ok` has series from the start, because a
/// histogram has many series for each label value.
const DURATION_OUTCOME: MetricLabel =
    variable(OUTCOME.name, |_| vec![Outcome::Ok.as_str().to_owned()], "")
        .described_by(|| OUTCOME.description())
        .of_request(|record| Some(record.outcome.as_str()));
/// The HTTP status that the client received: [`RequestRecord::status_code`].
const STATUS_CODE: MetricLabel = variable(
    "http_response_status_code",
    |_| vec!["200".to_owned()],
    "an HTTP status that inference servers usually send, or `_OTHER`",
)
.of_request(RequestRecord::status_code);
/// The operation of a request: [`Api::operation`], or `none` for a request that is not an inference
/// request.
const OPERATION: MetricLabel = computed("operation", || {
    let mut operations = Api::ALL.map(Api::operation).to_vec();
    operations.push("none");
    operations.sort_unstable();
    operations.dedup();
    operations
})
.of_request(|record| Some(record.api.map_or("none", Api::operation)));
const SLOW_CAUSE: MetricLabel =
    fixed("cause", SlowCause::NAMES).of_request(|record| record.slow.map(SlowCause::as_str));
const QUEUE_CLASS: MetricLabel = variable(
    "class",
    |known| [&[DEFAULT_CLASS.to_owned()], known.tiers.as_slice()].concat(),
    "a tier of `admission.classes`, or `default`",
);

pub(super) const ROWS: &[MetricDescriptor] = &[
    histogram(
        "gen_ai_server_request_duration_seconds",
        "Inference requests: time from the request head to the end of the exchange. Successes have the outcome ok and an empty error_type.",
        DURATION_BOUNDS,
        &[
            MODEL,
            BACKEND,
            GEN_AI_OPERATION,
            DURATION_OUTCOME,
            ERROR_TYPE,
            TIER,
        ],
        RecordValue(|record| Some(record.duration().as_secs_f64())),
    ),
    histogram(
        "gen_ai_client_token_usage",
        "Tokens per inference request. Not with OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental.",
        TOKEN_USAGE_BOUNDS,
        &[
            MODEL,
            GEN_AI_OPERATION,
            fixed("gen_ai_token_type", &["input", "output"]),
        ],
        Record(|record, emit| {
            let Some(api) = record.api else { return };
            let Usage { input, output, .. } = record.final_token_counts();
            for (kind, count) in [("input", input), ("output", output)] {
                if let Some(count) = count {
                    emit(
                        &[record.model.as_str(), api.operation(), kind],
                        count as f64,
                    );
                }
            }
        }),
    ),
    row(
        "tokenweir_http_responses_total",
        "Responses to clients, by HTTP status.",
        &[MODEL, STATUS_CODE],
        RecordValue(|_| Some(1.0)),
    ),
    value(
        "tokenweir_oldest_request_age_seconds",
        "Age of the request that has been in progress longest. 0: no request.",
        |status| Some(status.oldest_request_age_seconds),
    ),
    row(
        "tokenweir_requests_total",
        "Requests, by outcome.",
        &[MODEL, OPERATION, OUTCOME, TIER],
        RecordValue(|_| Some(1.0)),
    ),
    row(
        "tokenweir_request_terminations_total",
        "Requests, by how they ended and by the side that closed first.",
        &[
            fixed("termination", TerminationReason::NAMES),
            fixed("closed_by", TerminationInitiator::NAMES),
        ],
        Record(|record, emit| {
            emit(&[record.ending(), record.end.initiator().as_str()], 1.0);
        }),
    ),
    row(
        "tokenweir_finish_reasons_total",
        "Choices of responses, by the finish reason that the engine reported.",
        &[MODEL, fixed("reason", FinishReason::NAMES)],
        Record(|record, emit| {
            for finish in record.observed.finish_reasons.iter().flatten() {
                emit(&[record.model.as_str(), finish.as_str()], 1.0);
            }
        }),
    ),
    row(
        "tokenweir_client_disconnects_total",
        "Clients that disconnected before the response was complete, by the phase of the request.",
        &[fixed("phase", &RequestRecord::UNFINISHED_PHASES)],
        RecordEvent(|record| (record.outcome == Outcome::Cancelled).then(|| record.phase())),
    ),
    row(
        "tokenweir_requests_rejected_total",
        "Requests that the gateway answered with an error of its own, by reason.",
        &[fixed("reason", error::REASONS)],
        RecordEvent(|record| record.refusal),
    ),
    row(
        "tokenweir_requests_shed_total",
        "Rejected requests for which every backend was full.",
        &[fixed("reason", error::SHED_REASONS)],
        RecordEvent(|record| {
            record
                .refusal
                .filter(|reason| error::SHED_REASONS.contains(reason))
        }),
    ),
    histogram(
        "tokenweir_queue_wait_seconds",
        "Time in the admission queue of requests that had to wait.",
        QUEUE_WAIT_BOUNDS,
        &[TIER],
        RecordValue(|record| seconds(record.gateway_queue_wait())),
    ),
    row(
        "tokenweir_backend_queue_wait_seconds_total",
        "Time in the admission queue of requests that were then sent to the backend.",
        &[BACKEND],
        RecordValue(|record| seconds(record.gateway_queue_wait())),
    ),
    row(
        "tokenweir_queue_requests",
        "Requests waiting in the admission queue now.",
        &[QUEUE_CLASS],
        Status(|status, emit| {
            for queue in &status.queue {
                emit(&[&queue.class], queue.waiting as f64);
            }
        }),
    ),
    histogram(
        "tokenweir_backend_wait_seconds",
        "Time that requests waited in the admission queue while no backend could serve their model, whether they got a backend or not.",
        QUEUE_WAIT_BOUNDS,
        &[MODEL],
        RecordValue(|record| seconds(record.backend_wait())),
    ),
    row(
        "tokenweir_slow_requests_total",
        "Slow requests, by the cause that took most of their time.",
        &[MODEL, SLOW_CAUSE],
        RecordValue(|_| Some(1.0)),
    ),
    row(
        "tokenweir_refusal_phrases_total",
        "Responses with a phrase that the configuration lists as a refusal.",
        &[MODEL],
        RecordValue(|record| record.observed.has_refusal_phrase.then_some(1.0)),
    ),
    row(
        "tokenweir_model_refusals_total",
        "Responses in which the model declined.",
        &[MODEL],
        RecordValue(|record| record.is_model_refusal().then_some(1.0)),
    ),
    histogram(
        "tokenweir_max_tokens_utilization_ratio",
        "Output tokens / max_tokens of the request. At 1 the output was cut.",
        RATIO_BOUNDS,
        &[MODEL],
        RecordValue(RequestRecord::max_tokens_utilization),
    ),
    histogram(
        "tokenweir_gateway_overhead_seconds",
        "Time from the end of the request body until the request is sent, without queue and failed attempts.",
        OVERHEAD_BOUNDS,
        &[],
        RecordValue(|record| {
            let gateway = record.phases().get(RequestPhase::Gateway);
            seconds(gateway.map(|span| span.took))
        }),
    ),
    row(
        "tokenweir_uninspected_responses_total",
        "Responses whose content could not be read in full. Their bytes were forwarded unchanged.",
        &[fixed("reason", UninspectedReason::NAMES)],
        RecordEvent(|record| {
            record
                .observed
                .uninspected_reason
                .map(UninspectedReason::as_str)
        }),
    ),
    row(
        "tokenweir_label_overflow_total",
        "Requests with a value unknown to a label. They are counted under _other, other or _OTHER.",
        &[fixed(
            "label",
            &[MODEL.name, TIER.name, "reason", ERROR_TYPE.name, "tenant"],
        )],
        Record(|record, emit| {
            let finish_reasons = &record.observed.finish_reasons;
            let caller = record.caller.as_ref();
            let overflows = [
                (
                    MODEL.name,
                    record.api.is_some() && !record.model.is_label_value(),
                ),
                (TIER.name, record.tier == Tier::Other),
                (
                    "reason",
                    finish_reasons.contains(&Some(FinishReason::Other)),
                ),
                (ERROR_TYPE.name, record.error_type() == Some("_OTHER")),
                (
                    "tenant",
                    caller.is_some_and(|caller| !caller.is_tenant_label),
                ),
            ];
            for (label, is_unknown) in overflows {
                if is_unknown {
                    emit(&[label], 1.0);
                }
            }
        }),
    ),
    row(
        "tokenweir_request_body_bytes_total",
        "Bytes of request bodies read from clients.",
        &[],
        RecordValue(|record| Some(record.bytes_in as f64)),
    ),
    row(
        "tokenweir_response_body_bytes_total",
        "Bytes of response bodies written to clients.",
        &[],
        RecordValue(|record| Some(record.bytes_out as f64)),
    ),
];
