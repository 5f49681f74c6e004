//! Alerts about responses that are slow, slower than an hour ago, fail, or are aborted.
//!
//! The alerts with `High` in their names have an absolute limit, which no client accepts, and need no
//! history. Those with `Degraded` compare a quantile with its value an hour before, so that each model
//! has its own baseline, and with an absolute minimum, below which clients do not notice the change.
//! After an hour the degraded value is the baseline, so these alerts end. The duration of a whole
//! response depends on its length, so it has no absolute limit.

use super::alert::{Alert, AlertInhibition, AlertSeverity};
use crate::outcomes::{FAILED_OUTCOMES, share_by_model};

const AREA: &str = "latency";

pub(super) fn alerts() -> Vec<Alert> {
    vec![
        ttft_high(),
        tpot_high(),
        ttft(),
        itl(),
        e2e(),
        throughput_drop(),
        errors(),
        client_aborts(),
        engine_gap(),
    ]
}

/// A firing alert mutes `alert` for the same model.
const fn inhibit_for_same_model(alert: &'static str) -> AlertInhibition {
    AlertInhibition { alert, equal: &["gen_ai_request_model"] }
}

fn ttft_high() -> Alert {
    Alert {
        name: "TokenweirTtftHigh",
        when: "the p95 of TTFT of a model has been above 5 s for 10 minutes",
        area: AREA,
        severity: AlertSeverity::Page,
        expr: "tokenweir:ttft_seconds:p95_5m > 5\n\
               and on (gen_ai_request_model) tokenweir:streams:increase5m > 20"
            .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "First tokens of {{ $labels.gen_ai_request_model }} take seconds",
        description: "The p95 of the time to first token of {{ $labels.gen_ai_request_model }} is \
                      {{ $value | humanizeDuration }}.",
        meaning: "Clients wait for many seconds before they see anything. The alert lasts as long as \
                  they do.",
        confirm: "`tokenweir diagnose` names the cause if it is known: a queue, long prompts, a slow \
                  engine. Dashboard, row Latency: the panel of phases.",
        action: "Follow the remedy of the verdict. Without a verdict: add backends, or shed low classes \
                 (`admission.classes`). If such times are usual for this model, set an objective in `slos` \
                 and silence this alert for it.",
        silences: vec![inhibit_for_same_model("TokenweirTtftDegraded")],
    }
}

fn tpot_high() -> Alert {
    Alert {
        name: "TokenweirTpotHigh",
        when: "the p95 of the time per output token of a model has been above 250 ms for 10 minutes",
        area: AREA,
        severity: AlertSeverity::Page,
        expr: "histogram_quantile(0.95, sum by (le, gen_ai_request_model) \
               (rate(gen_ai_server_time_per_output_token_seconds_bucket[5m]))) > 0.25\n\
               and on (gen_ai_request_model) sum by (gen_ai_request_model) \
               (increase(gen_ai_server_time_per_output_token_seconds_count[5m])) > 20"
            .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "Streams of {{ $labels.gen_ai_request_model }} are slower than people read",
        description: "The p95 of the time per output token of {{ $labels.gen_ai_request_model }} is \
                      {{ $value | humanizeDuration }}.",
        meaning: "A stream has fewer than four tokens a second.",
        confirm: "`tokenweir diagnose` names the cause if it is known. Dashboard, row Latency: one backend \
                  or all?",
        action: "One backend: set its `weight` to 0. All: lower `--max-num-seqs` or add backends, because \
                 the batches are too large.",
        silences: vec![inhibit_for_same_model("TokenweirItlDegraded")],
    }
}

/// The Prometheus query of the condition that a recorded quantile is above `min_value` and more
/// than `times` its value an hour before. The series `count` must be above 20 both now and an hour
/// before.
fn degraded_quantile_expr(quantile: &str, count: &str, min_value: f64, times: f64) -> String {
    format!(
        "{quantile} > {min_value}\n\
         and {quantile} > {times} * ({quantile} offset 1h)\n\
         and on (gen_ai_request_model) {count} > 20\n\
         and on (gen_ai_request_model) ({count} offset 1h) > 20"
    )
}

fn ttft() -> Alert {
    Alert {
        name: "TokenweirTtftDegraded",
        when: "the p95 of TTFT is above 1 s, and twice the value of an hour before",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: degraded_quantile_expr(
            "tokenweir:ttft_seconds:p95_5m",
            "tokenweir:streams:increase5m",
            1.0,
            2.0,
        )
        .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "First tokens of {{ $labels.gen_ai_request_model }} are late",
        description: "The p95 of the time to first token of {{ $labels.gen_ai_request_model }} is \
                      {{ $value | humanizeDuration }}, more than twice the value of an hour ago.",
        meaning: "Clients wait longer for the first token. The time is spent in a queue or in \
                  prefill.",
        confirm: "Dashboard, row Latency: the panel of phases shows which of the two. The \
                  exemplars of the heatmap open traces of such requests.",
        action: "Queue: see the capacity alerts. Prefill: prompts are longer, or prefixes are no \
                 longer cached (row Cache efficiency), for example after a restart. One backend: \
                 compare its prefill speed with that of the others.",
        silences: Vec::new(),
    }
}

fn itl() -> Alert {
    Alert {
        name: "TokenweirItlDegraded",
        when: "the p95 of the time between two outputs is above 100 ms, and twice the value of an \
               hour before",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: degraded_quantile_expr(
            "tokenweir:inter_chunk_seconds:p95_5m",
            "tokenweir:chunks:increase5m",
            0.1,
            2.0,
        )
        .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "Streams of {{ $labels.gen_ai_request_model }} are slow",
        description: "The p95 of the time between two outputs of \
                      {{ $labels.gen_ai_request_model }} is {{ $value | humanizeDuration }}, more \
                      than twice the value of an hour ago.",
        meaning: "Streams are slower than people read. The batches are too large, long prompts \
                  delay them, or requests are preempted.",
        confirm: "Dashboard, row Latency: has the median risen too (batches), or only the tail \
                  (prompts, preemptions)? Row Queue and scheduling: running requests.",
        action: "Batches: lower `--max-num-seqs`, or add backends. Tail: lower \
                 `--max-num-batched-tokens`, or raise `routing.kv_aware.charge_per_waiting` so that long \
                 prompts go to backends with few running requests.",
        silences: Vec::new(),
    }
}

fn e2e() -> Alert {
    Alert {
        name: "TokenweirE2eDegraded",
        when: "the p95 of the request duration is above 10 s, and twice the value of an hour \
               before",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: degraded_quantile_expr(
            "tokenweir:request_duration_seconds:p95_5m",
            "tokenweir:good_requests:increase5m",
            10.0,
            2.0,
        )
        .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "Requests of {{ $labels.gen_ai_request_model }} take long",
        description: "The p95 of the duration of requests of {{ $labels.gen_ai_request_model }} is \
                      {{ $value | humanizeDuration }}, more than twice the value of an hour ago.",
        meaning: "Responses take longer, because each token takes longer or because there are more \
                  tokens.",
        confirm: "Dashboard, row Latency: if TTFT and ITL are unchanged, the responses are longer. \
                  Then check the panel of finish reasons.",
        action: "Longer responses: a changed prompt, or a model that does not stop; check for the \
                 finish reason `length`. Otherwise follow TokenweirTtftDegraded or \
                 TokenweirItlDegraded.",
        silences: Vec::new(),
    }
}

fn throughput_drop() -> Alert {
    Alert {
        name: "TokenweirThroughputDrop",
        when: "output tokens per second are half of an hour before, with about as many requests in \
               flight",
        area: AREA,
        severity: AlertSeverity::Page,
        expr: "tokenweir:output_tokens:rate5m < 0.5 * (tokenweir:output_tokens:rate5m offset 1h)\n\
               and (tokenweir:output_tokens:rate5m offset 1h) > 10\n\
               and tokenweir:requests_in_flight:avg5m\n  \
               >= 0.8 * (tokenweir:requests_in_flight:avg5m offset 1h)\n\
               and tokenweir:requests_in_flight:avg5m >= 2"
            .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "The throughput has halved at equal demand",
        description: "All backends together generate {{ $value | humanize }} output tokens per \
                      second, less than half the rate of an hour ago, with about as many requests \
                      in flight.",
        meaning: "All requests are slower: because of preemptions, a power or clock limit of the \
                  GPUs, fewer backends, or a slow network.",
        confirm: "Dashboard, row System health: tokens per second. Row Routing: requests in flight \
                  by backend. `nvidia-smi -q -d PERFORMANCE` shows throttling.",
        action: "One backend: drain it. All backends: what changed at that time? Roll it back.",
        silences: Vec::new(),
    }
}

fn errors() -> Alert {
    Alert {
        name: "TokenweirErrors",
        when: "backends fail more than 5 % of the requests of a model, or of all models together",
        area: AREA,
        severity: AlertSeverity::Page,
        expr: share_by_model(FAILED_OUTCOMES, 10).into(),
        holds_for: "2m",
        stays_for: Some("5m"),
        summary: "Backends fail requests{{ with $labels.gen_ai_request_model }} of {{ . }}{{ end }}",
        description: "{{ $value | humanizePercentage }} of the requests of the last five minutes \
                      failed at a backend: an error status, an error in the stream, an incomplete \
                      stream, or no response.",
        meaning: "Clients get errors or incomplete responses.",
        confirm: "Dashboard, row System health: terminations. `upstream_status`: the backend \
                  answers 5xx. `truncated_cut`: it died or was killed. `upstream_abort`: the \
                  engine aborted the request. `timeout_headers`: it does not respond. Jaeger: \
                  search for `tokenweir.sample_reason=error`.",
        action: "`tokenweir diagnose` names a backend that fails (`backend_failing`), also one whose \
                 requests others serve. One backend: stop it; the gateway then routes around it. All backends: check the \
                 last deployment of vLLM or of the model, or requests of a new kind that break it; \
                 the traces have the routes.",
        silences: Vec::new(),
    }
}

fn client_aborts() -> Alert {
    Alert {
        name: "TokenweirClientAborts",
        when: "more than 20 % of clients disconnect before the end of the response",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "sum(rate(tokenweir_requests_total{outcome=\"cancelled\"}[10m]))\n\
               / sum(rate(tokenweir_requests_total[10m])) > 0.2\n\
               and sum(increase(tokenweir_requests_total{outcome=\"cancelled\"}[10m])) > 20"
            .into(),
        holds_for: "10m",
        stays_for: Some("10m"),
        summary: "Many clients disconnect before their response is complete",
        description: "The client disconnected in {{ $value | humanizePercentage }} of the requests \
                      of the last ten minutes.",
        meaning: "Clients do not wait, or their timeout is shorter than the responses take. The \
                  tokens are computed in vain.",
        confirm: "`tokenweir_client_disconnects_total` by phase: `queued`, `headers`, \
                  `engine_queue`, `prefill` and `unresponsive` mean that responses are too slow; \
                  `decode` means a stop button or a short timeout.",
        action: "Too slow: see the latency and capacity alerts. Otherwise identify the client: the \
                 log lines with outcome `cancelled` have its address and the time.",
        silences: Vec::new(),
    }
}

fn engine_gap() -> Alert {
    Alert {
        name: "TokenweirEngineGap",
        when: "first tokens arrive 250 ms later than the engine reports",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "(\n  \
               sum by (backend) (rate(gen_ai_server_time_to_first_token_seconds_sum[5m]))\n  \
               - sum by (backend) (rate(tokenweir_backend_queue_wait_seconds_total[5m]))\n\
               )\n\
               / sum by (backend) (rate(gen_ai_server_time_to_first_token_seconds_count[5m]))\n\
               - on (backend)\n  \
               max by (backend) (rate(tokenweir_engine_first_token_seconds_total[5m]))\n  \
               / max by (backend) (rate(tokenweir_engine_first_tokens_total[5m])) > 0.25\n\
               and on (backend) sum by (backend)\n  \
               (increase(gen_ai_server_time_to_first_token_seconds_count[5m])) > 20"
            .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "{{ $labels.backend }} is slower than its engine reports",
        description: "First tokens of {{ $labels.backend }} arrive {{ $value | humanizeDuration }} \
                      later than its engine reports, on average, without the time in the gateway's \
                      queue.",
        meaning: "Time is lost outside the engine: in its API server (tokenisation, chat \
                  templates, images), in the network, or in connections that wait to be accepted.",
        confirm: "A trace of that backend: the attempt span is much longer before the first output \
                  than the `llm_request` span below it. `top` on the backend: does the API server \
                  use 100 % of a core?",
        action: "Use more API processes (`--api-server-count`) or vLLM's Rust front end. Otherwise \
                 check the network in between.",
        silences: Vec::new(),
    }
}
