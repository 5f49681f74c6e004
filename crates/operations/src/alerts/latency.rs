//! Alerts about responses that are slow, that are slower than an hour ago, that fail, or that clients abort.
//!
//! The alerts with `High` in their names have an absolute limit, which no client accepts, and need no
//! history. `TokenweirLatencyDegraded` compares quantiles with their values an hour before, so each model has
//! its own baseline. It also has an absolute minimum, because clients do not notice a change below it. After
//! an hour the degraded value is the baseline, so the alert ends. The duration of a whole response depends on
//! the length of the response, so this latency has no absolute limit.

use super::alert::{Alert, AlertSeverity, Runbook};
use crate::outcomes::{FAILED_OUTCOMES, share_by_model};

pub(super) fn alerts() -> Vec<Alert> {
    vec![ttft_high(), tpot_high(), latency_degraded(), errors(), client_aborts()]
}

/// The latencies that `latency_degraded` compares. For each: its name, the series of its quantile, the series
/// of its number of observations, and the minimum in milliseconds.
const DEGRADABLE: [(&str, &str, &str, u32); 3] = [
    ("time to first token", "tokenweir:ttft_seconds:p95_5m", "tokenweir:streams:increase5m", 1_000),
    (
        "time between outputs",
        "tokenweir:inter_chunk_seconds:p95_5m",
        "tokenweir:chunks:increase5m",
        100,
    ),
    (
        "request duration",
        "tokenweir:request_duration_seconds:p95_5m",
        "tokenweir:good_requests:increase5m",
        10_000,
    ),
];

/// Returns the part `or ...` of an alert's query, for models with too few streams in five minutes. Its
/// condition is that the p95 of the last hour is above `limit` seconds.
fn or_in_an_hour(histogram: &str, limit: &str) -> String {
    let streams =
        |window| format!("sum by (gen_ai_request_model) (increase({histogram}_count[{window}]))");
    format!(
        "or histogram_quantile(0.95, sum by (le, gen_ai_request_model) \
         (rate({histogram}_bucket[1h]))) > {limit}\n\
         and on (gen_ai_request_model) {} > 20\n\
         and on (gen_ai_request_model) ({} <= 20) > 0",
        streams("1h"),
        streams("5m")
    )
}

fn ttft_high() -> Alert {
    Alert {
        name: "TokenweirTtftHigh",
        severity: AlertSeverity::Page,
        expr: format!(
            "tokenweir:ttft_seconds:p95_5m > 5\n\
             and on (gen_ai_request_model) tokenweir:streams:increase5m > 20\n{}",
            or_in_an_hour("gen_ai_server_time_to_first_token_seconds", "5")
        )
        .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "First tokens of {{ $labels.gen_ai_request_model }} take seconds",
        description: "The p95 of the time to first token of {{ $labels.gen_ai_request_model }} is \
                      {{ $value | humanizeDuration }}.",
        runbook: Runbook::Own {
            meaning: "The p95 of the time to first token of a model has been above 5 s.",
            confirm: "`tokenweir diagnose`. Dashboard, row Latency: phases.",
            action: "Follow the verdict. Without one, add backends, or shed low classes \
                     (`admission.classes`). If such TTFTs are usual, set an objective in `slos` \
                     and silence this alert.",
        },
    }
}

fn tpot_high() -> Alert {
    Alert {
        name: "TokenweirTpotHigh",
        severity: AlertSeverity::Page,
        expr: format!(
            "histogram_quantile(0.95, sum by (le, gen_ai_request_model) \
             (rate(gen_ai_server_time_per_output_token_seconds_bucket[5m]))) > 0.25\n\
             and on (gen_ai_request_model) sum by (gen_ai_request_model) \
             (increase(gen_ai_server_time_per_output_token_seconds_count[5m])) > 20\n{}",
            or_in_an_hour("gen_ai_server_time_per_output_token_seconds", "0.25")
        )
        .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "Streams of {{ $labels.gen_ai_request_model }} are slower than people read",
        description: "The p95 of the time per output token of {{ $labels.gen_ai_request_model }} is \
                      {{ $value | humanizeDuration }}.",
        runbook: Runbook::Own {
            meaning: "The p95 of the time per output token of a model has been above 250 ms.",
            confirm: "`tokenweir diagnose`. Dashboard, row Latency: is one backend slow, or are \
                      all?",
            action: "If one is slow, set its `weight` to 0. If all are, lower `--max-num-seqs` or \
                     add backends.",
        },
    }
}

/// The Prometheus query of the alert: a quantile of [`DEGRADABLE`] is above its minimum and more than twice
/// its value an hour before. The number of observations must be above 20 both now and an hour before. The
/// label `latency` has the name of the latency.
fn degraded_condition() -> String {
    let conditions = DEGRADABLE.map(|(latency, quantile, count, min_millis)| {
        let min_seconds = f64::from(min_millis) / 1e3;
        format!(
            "label_replace(\n  \
             {quantile} > {min_seconds}\n  \
             and {quantile} > 2 * ({quantile} offset 1h)\n  \
             and on (gen_ai_request_model) {count} > 20\n  \
             and on (gen_ai_request_model) ({count} offset 1h) > 20,\n  \
             \"latency\", \"{latency}\", \"\", \"\"\n)"
        )
    });
    conditions.join("\nor ")
}

fn latency_degraded() -> Alert {
    Alert {
        name: "TokenweirLatencyDegraded",
        severity: AlertSeverity::Ticket,
        expr: degraded_condition().into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "{{ $labels.gen_ai_request_model }} is slower than an hour ago: {{ $labels.latency }}",
        description: "The p95 of the {{ $labels.latency }} of {{ $labels.gen_ai_request_model }} is \
                      {{ $value | humanizeDuration }}, more than twice the value of an hour ago.",
        runbook: Runbook::Own {
            meaning: "A p95 of a model is twice that of an hour before: time to first token \
                      (above 1 s), time between outputs (100 ms), or request duration (10 s).",
            confirm: "Dashboard, row Latency: has the queue, the prefill or the median (large \
                      batches) risen? If only the duration has, responses are longer.",
            action: "Queue: add capacity. Prefill: prompts are longer, or the cache is cold. \
                     Batches: lower `--max-num-seqs`. Longer responses: find a changed prompt, or \
                     a model that does not stop.",
        },
    }
}

fn errors() -> Alert {
    Alert {
        name: "TokenweirErrors",
        severity: AlertSeverity::Page,
        expr: share_by_model(FAILED_OUTCOMES, 10).into(),
        holds_for: "2m",
        stays_for: Some("5m"),
        summary: "Backends fail requests{{ with $labels.gen_ai_request_model }} of {{ . }}{{ end }}",
        description: "{{ $value | humanizePercentage }} of the requests of the last five minutes \
                      failed at a backend: an error status, an error in the stream, an incomplete \
                      stream, or no response.",
        runbook: Runbook::Own {
            meaning: "Backends fail more than 5 % of the requests of a model, or of all.",
            confirm: "Dashboard, row System health: terminations. Traces: \
                      `tokenweir.sample_reason=error`.",
            action: "The verdict `backend_failing` names the backend: stop it. If all fail, check \
                     the last deployment, and look for requests that break the engine.",
        },
    }
}

fn client_aborts() -> Alert {
    Alert {
        name: "TokenweirClientAborts",
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
        runbook: Runbook::Own {
            meaning: "More than 20 % of clients disconnect early. The verdict `abort_spike` \
                      compares with the usual share.",
            confirm: "`tokenweir_client_disconnects_total` by phase: `decode` means a stop button \
                      or a short timeout.",
            action: "Other phases mean slow responses. Find the client in log lines with outcome \
                     `cancelled`.",
        },
    }
}
