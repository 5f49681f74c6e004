//! The gateway itself.

use super::{Alert, Severity};

const AREA: &str = "gateway";

pub(super) fn alerts() -> Vec<Alert> {
    vec![
        gateway_down(),
        overhead(),
        dropped_spans(),
        reload_failed(),
        certificate_ends(),
        task_panicked(),
    ]
}

fn gateway_down() -> Alert {
    Alert {
        name: "TokenweirDown",
        when: "the gateway cannot be scraped",
        area: AREA,
        severity: Severity::Page,
        expr: "up{job=\"tokenweir\"} == 0".into(),
        holds_for: "1m",
        stays_for: None,
        summary: "The gateway {{ $labels.instance }} cannot be scraped",
        description: "The metrics of {{ $labels.instance }} have not been readable for a minute. Nothing is \
                      known of its requests meanwhile.",
        meaning: "The process is gone, hangs, or its admin port cannot be reached. No other alert can fire \
                  for it while this one does.",
        confirm: "`curl http://GATEWAY:9090/livez`, and from a client's place `curl \
                  http://GATEWAY:8080/health`.",
        action: "Process gone: its last log lines, then start it. Admin port only: network policy, or a \
                 changed `admin` address.",
        silences: Vec::new(),
    }
}

fn overhead() -> Alert {
    Alert {
        name: "TokenweirOverhead",
        when: "the gateway takes more than 10 ms at p99",
        area: AREA,
        severity: Severity::Ticket,
        expr: "histogram_quantile(0.99, sum by (le) \
               (rate(tokenweir_gateway_overhead_seconds_bucket[5m]))) > 0.01\n\
               and sum(increase(tokenweir_gateway_overhead_seconds_count[5m])) > 100"
            .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "The gateway itself is slow",
        description: "The p99 of what the gateway takes for a request is {{ $value | humanizeDuration }}; \
                      it should be well below a millisecond.",
        meaning: "The gateway has too little CPU, or swaps.",
        confirm: "Dashboard, row Gateway: CPU and memory. Are its CPU limits lower than what it uses?",
        action: "Give it more CPU: a gateway that is throttled delays every request. Or run a second one.",
        silences: Vec::new(),
    }
}

fn dropped_spans() -> Alert {
    Alert {
        name: "TokenweirSpansDropped",
        when: "more than 5 % of spans, and more than 100, are lost in 10 minutes",
        area: AREA,
        severity: Severity::Ticket,
        expr: "sum(increase(tokenweir_otel_spans_total{result=\"queued\"}[10m]))\n\
               - sum(increase(tokenweir_otel_spans_total{result=\"exported\"}[10m])) > 100\n\
               and sum(increase(tokenweir_otel_spans_total{result=\"exported\"}[10m]))\n  \
               < 0.95 * sum(increase(tokenweir_otel_spans_total{result=\"queued\"}[10m]))"
            .into(),
        holds_for: "5m",
        stays_for: Some("10m"),
        summary: "Traces are lost",
        description: "{{ $value | humanize }} spans did not reach the collector in 10 minutes. Requests and \
                      metrics are not touched by that.",
        meaning: "The collector is down, slow or refuses. Some exemplars lead to no trace.",
        confirm: "The gateway's log names the collector's error. `tokenweir_otel_spans_total`: `failed` \
                  grows if it refuses; if it does not, the queue overflows because it is slow.",
        action: "See the collector: memory limit, its own export queue. Or lower the rate of traces that \
                 are kept without reason.",
        silences: Vec::new(),
    }
}

fn reload_failed() -> Alert {
    Alert {
        name: "TokenweirReloadFailed",
        when: "the configuration could not be used when it was last read",
        area: AREA,
        severity: Severity::Ticket,
        expr: "tokenweir_config_last_reload_successful == 0".into(),
        holds_for: "5m",
        stays_for: None,
        summary: "The configuration of {{ $labels.instance }} has a mistake",
        description: "{{ $labels.instance }} could not use its configuration when it last read it, and \
                      goes on with the one before.",
        meaning: "What was changed is not in force, and a gateway that starts with this file will not \
                  start. Requests are not touched by that.",
        confirm: "The gateway's log has file, line and column. `tokenweir check FILE` says the same; \
                  `curl http://GATEWAY:9090/config` shows what is in force.",
        action: "Correct the file, or put the old one back. Then `curl -X POST \
                 http://GATEWAY:9090/-/reload`, unless `reload.watch` is on.",
        silences: Vec::new(),
    }
}

fn certificate_ends() -> Alert {
    Alert {
        name: "TokenweirCertificateEnds",
        when: "a certificate of the gateway ends within seven days",
        area: AREA,
        severity: Severity::Ticket,
        expr: "tokenweir_certificate_expiry_timestamp_seconds - time() < 7 * 86400".into(),
        holds_for: "15m",
        stays_for: None,
        summary: "A certificate of {{ $labels.instance }} ends soon",
        description: "The certificate that {{ $labels.instance }} shows to its {{ $labels.side }}s, or one \
                      that leads to its authority, ends in {{ $value | humanizeDuration }}.",
        meaning: "It has not been renewed in time, or the new one is not where the gateway reads it. When \
                  it ends, those who check it refuse every new connection.",
        confirm: "`openssl x509 -enddate -noout -in FILE`, for the files of `tls`, `backend_tls` and the \
                  collectors. `tokenweir_certificate_reloads_total`: does `failed` grow?",
        action: "Renew it, and write it where it was: it is read every 10 s, and no restart is needed. \
                 Certificates that are made for less than a week: take a shorter time here.",
        silences: Vec::new(),
    }
}

fn task_panicked() -> Alert {
    Alert {
        name: "TokenweirTaskPanicked",
        when: "a background task of the gateway has panicked",
        area: AREA,
        severity: Severity::Ticket,
        expr: "increase(tokenweir_task_panics_total[15m]) > 0".into(),
        holds_for: "1m",
        stays_for: None,
        summary: "A task of {{ $labels.instance }} panicked",
        description: "The task {{ $labels.task }} of {{ $labels.instance }} panicked in the last 15 \
                      minutes. It is started again, after at most 30 s.",
        meaning: "A defect of the gateway. Requests go on, and what the task does was late or is missing: \
                  records of some requests for `record_sink`, a health check for `health_check`.",
        confirm: "The gateway's log: `the gateway panicked` has file and line, and the next line the task.",
        action: "Report both lines. If the task panics again and again, undo what changed last: the \
                 configuration, the version of the gateway, or the servers behind it.",
        silences: Vec::new(),
    }
}
