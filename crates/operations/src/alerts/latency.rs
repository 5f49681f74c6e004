//! Answers that are slower than an hour ago, or fewer, or none.
//!
//! A quantile is compared with itself an hour before, so that each model has its own measure, and
//! with a floor below which nobody feels a difference. After an hour the bad time is the measure:
//! what stays then is the objective's alert.

use super::{Alert, Severity};

const AREA: &str = "latency";

pub(super) fn alerts() -> Vec<Alert> {
    vec![ttft(), itl(), e2e(), throughput_drop(), errors(), client_aborts(), engine_gap()]
}

/// A recorded quantile that is above a floor, and so many times what it was an hour before; with
/// enough requests then and now.
fn degraded(quantile: &str, count: &str, floor: f64, times: f64) -> String {
    format!(
        "{quantile} > {floor}\n\
         and {quantile} > {times} * ({quantile} offset 1h)\n\
         and on (gen_ai_request_model) {count} > 20\n\
         and on (gen_ai_request_model) ({count} offset 1h) > 20"
    )
}

fn ttft() -> Alert {
    Alert {
        name: "TokenweirTtftDegraded",
        when: "the p95 of TTFT is above 1 s, and twice that of an hour before",
        area: AREA,
        severity: Severity::Ticket,
        expr: degraded("tokenweir:ttft_seconds:p95_5m", "tokenweir:streams:increase5m", 1.0, 2.0)
            .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "First tokens of {{ $labels.gen_ai_request_model }} come late",
        description: "The p95 of time to first token of {{ $labels.gen_ai_request_model }} is {{ $value | \
                      humanizeDuration }}, more than twice that of an hour ago.",
        meaning: "Users wait for the first word. It is time in a queue or in prefill.",
        confirm: "Dashboard, row Latency: the panel of phases says which of the two. The dots on the \
                  heatmap open traces of such requests.",
        action: "Queue: see the alerts of capacity. Prefill: longer prompts, or prefixes that are not \
                 cached any more (row Cache efficiency), after a restart for example. One replica: \
                 compare its computed prompt tokens per second with the others'.",
        silences: Vec::new(),
    }
}

fn itl() -> Alert {
    Alert {
        name: "TokenweirItlDegraded",
        when: "the p95 between two outputs is above 100 ms, and twice that of an hour before",
        area: AREA,
        severity: Severity::Ticket,
        expr: degraded(
            "tokenweir:inter_chunk_seconds:p95_5m",
            "tokenweir:chunks:increase5m",
            0.1,
            2.0,
        )
        .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "The text of {{ $labels.gen_ai_request_model }} comes haltingly",
        description: "The p95 of the time between two outputs of {{ $labels.gen_ai_request_model }} is \
                      {{ $value | humanizeDuration }}, more than twice that of an hour ago.",
        meaning: "Streams are slower than people read. Batches are too large, long prompts hold them \
                  up, or requests are preempted.",
        confirm: "Dashboard, row Latency: is the median up too (batches), or only the tail (prompts, \
                  preemptions)? Row Queue and scheduling: running requests.",
        action: "Batches: lower `--max-num-seqs`, add replicas. Tail: smaller `--max-num-batched-tokens`, \
                 or raise `routing.kv_aware.interference` so that long prompts go where few run.",
        silences: Vec::new(),
    }
}

fn e2e() -> Alert {
    Alert {
        name: "TokenweirE2eDegraded",
        when: "the p95 of whole requests is above 10 s, and twice that of an hour before",
        area: AREA,
        severity: Severity::Ticket,
        expr: degraded(
            "tokenweir:request_duration_seconds:p95_5m",
            "tokenweir:good_requests:increase5m",
            10.0,
            2.0,
        )
        .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "Answers of {{ $labels.gen_ai_request_model }} take long",
        description: "The p95 of whole requests of {{ $labels.gen_ai_request_model }} is {{ $value | \
                      humanizeDuration }}, more than twice that of an hour ago.",
        meaning: "Answers take longer: because each token does, or because there are more of them.",
        confirm: "Dashboard, row Latency: with TTFT and ITL as they were, it is the length of answers: see \
                  output tokens by finish reason.",
        action: "Longer answers: a changed prompt or model that does not stop; look for finish reason \
                 `length`. Else follow TokenweirTtftDegraded or TokenweirItlDegraded.",
        silences: Vec::new(),
    }
}

fn throughput_drop() -> Alert {
    Alert {
        name: "TokenweirThroughputDrop",
        when: "output tokens per second are half of an hour before, with as many requests in flight",
        area: AREA,
        severity: Severity::Page,
        expr: "tokenweir:output_tokens:rate5m < 0.5 * (tokenweir:output_tokens:rate5m offset 1h)\n\
               and (tokenweir:output_tokens:rate5m offset 1h) > 10\n\
               and tokenweir:requests_in_flight:avg5m\n  \
               >= 0.8 * (tokenweir:requests_in_flight:avg5m offset 1h)\n\
               and tokenweir:requests_in_flight:avg5m >= 2"
            .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "Half of the throughput is gone, and the demand is not",
        description: "All replicas together make {{ $value | humanize }} output tokens a second, less than \
                      half of an hour ago, with as many requests in flight.",
        meaning: "Something makes the replicas slow for everybody: preemption, a power or clock limit of \
                  the GPUs, fewer replicas, a network that drags.",
        confirm: "Dashboard, row System health: tokens per second. Row Routing: requests in flight by \
                  replica. `nvidia-smi -q -d PERFORMANCE` shows throttling.",
        action: "One replica: drain it. All: what changed at that minute? Roll it back.",
        silences: Vec::new(),
    }
}

fn errors() -> Alert {
    Alert {
        name: "TokenweirErrors",
        when: "replicas fail more than 5 % of requests",
        area: AREA,
        severity: Severity::Page,
        expr: "sum(rate(tokenweir_requests_total\
               {outcome=~\"upstream_error|stream_error|truncated|aborted|timeout\"}[5m]))\n\
               / sum(rate(tokenweir_requests_total{outcome!~\"client_error|cancelled\"}[5m])) > 0.05\n\
               and sum(increase(tokenweir_requests_total\
               {outcome=~\"upstream_error|stream_error|truncated|aborted|timeout\"}[5m])) >= 10"
            .into(),
        holds_for: "2m",
        stays_for: Some("5m"),
        summary: "Replicas fail requests",
        description: "{{ $value | humanizePercentage }} of the requests of the last five minutes were failed \
                      by a replica: an error status, an error in the stream, a stream that was cut, no \
                      answer.",
        meaning: "Users get errors or half answers.",
        confirm: "Dashboard, row System health: endings. `upstream_status`: the replica says 5xx. \
                  `truncated_cut`: it died or was killed. `upstream_abort`: the engine gave up. \
                  `timeout_headers`: it does not answer. Jaeger: `tokenweir.kept=error`.",
        action: "One replica: stop it; the gateway leaves it out. All: the last deployment of vLLM or of \
                 the model, or requests of a new kind that break it: the traces have the routes.",
        silences: Vec::new(),
    }
}

fn client_aborts() -> Alert {
    Alert {
        name: "TokenweirClientAborts",
        when: "more than 20 % of clients leave before the end",
        area: AREA,
        severity: Severity::Ticket,
        expr: "sum(rate(tokenweir_requests_total{outcome=\"cancelled\"}[10m]))\n\
               / sum(rate(tokenweir_requests_total[10m])) > 0.2\n\
               and sum(increase(tokenweir_requests_total{outcome=\"cancelled\"}[10m])) > 20"
            .into(),
        holds_for: "10m",
        stays_for: Some("10m"),
        summary: "Many clients leave before their answer is whole",
        description: "{{ $value | humanizePercentage }} of the requests of the last ten minutes were given up \
                      by their clients.",
        meaning: "People lose patience, or a client's own timeout is shorter than the answers take. The \
                  tokens are computed for nobody.",
        confirm: "`tokenweir_client_disconnects_total` by phase: `queued`, `headers`, `engine_queue`, \
                  `prefill` and `unresponsive` mean too slow, `decode` means a stop button or a short timeout.",
        action: "Too slow: see the alerts of latency and capacity. Otherwise find the client: the log lines \
                 with outcome `cancelled` have their address and time.",
        silences: Vec::new(),
    }
}

fn engine_gap() -> Alert {
    Alert {
        name: "TokenweirEngineGap",
        when: "first tokens arrive 250 ms later than the engine says",
        area: AREA,
        severity: Severity::Ticket,
        expr: "(\n  sum by (backend) (rate(gen_ai_server_time_to_first_token_seconds_sum[5m]))\n  \
               - sum by (backend) (rate(tokenweir_phase_seconds_sum{phase=\"gateway_queue\"}[5m]))\n)\n\
               / sum by (backend) (rate(gen_ai_server_time_to_first_token_seconds_count[5m]))\n\
               - on (backend)\n  \
               sum by (backend) (rate(vllm:time_to_first_token_seconds_sum[5m]))\n  \
               / sum by (backend) (rate(vllm:time_to_first_token_seconds_count[5m])) > 0.25\n\
               and on (backend) sum by (backend)\n  \
               (increase(gen_ai_server_time_to_first_token_seconds_count[5m])) > 20"
            .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "{{ $labels.backend }} says that it is faster than it is",
        description: "First tokens of {{ $labels.backend }} arrive {{ $value | humanizeDuration }} later than \
                      its engine says, on the mean, without the time in the gateway's queue.",
        meaning: "Time is lost where the engine does not look: its API server (tokenising, chat templates, \
                  images), the network, or connections that wait to be accepted.",
        confirm: "A trace of that replica: the attempt span is much longer before the first output than \
                  `llm_request` below it. `top` on the replica: is the API server at 100 % of a core?",
        action: "More API processes (`--api-server-count`) or vLLM's Rust front end; else look at the \
                 network between.",
        silences: Vec::new(),
    }
}
