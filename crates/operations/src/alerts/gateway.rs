//! Alerts about the gateway itself: its availability, overhead, spans, reloads, certificates and
//! background tasks.

use super::alert::{Alert, AlertSeverity};

const AREA: &str = "gateway";

pub(super) fn alerts() -> Vec<Alert> {
    vec![
        gateway_down(),
        connections_refused(),
        overhead(),
        request_open_long(),
        token_drift(),
        dropped_spans(),
        reload_failed(),
        certificate_ends(),
        task_panicked(),
    ]
}

fn gateway_down() -> Alert {
    Alert {
        name: "TokenweirDown",
        when: "a gateway cannot be scraped, or no gateway is left as a target",
        area: AREA,
        severity: AlertSeverity::Page,
        // A pod that is gone leaves no target, and so no series.
        expr: "up{job=\"tokenweir\"} == 0\nor absent(up{job=\"tokenweir\"})".into(),
        holds_for: "1m",
        stays_for: None,
        summary: "{{ with $labels.instance }}The gateway {{ . }} cannot be scraped{{ else }}No gateway \
                  is a target of Prometheus{{ end }}",
        description: "The metrics {{ with $labels.instance }}of {{ . }} {{ end }}have been unreadable for \
                      a minute. The state of its requests is unknown.",
        meaning: "The process is stopped or hangs, or its admin port is unreachable. Without a target: all \
                  its pods are gone, or the scrape job no longer finds them. While this alert fires, no \
                  other alert can fire for this gateway.",
        confirm: "`curl http://GATEWAY:9090/livez`, and from a client machine `curl \
                  http://GATEWAY:8080/health`.",
        action: "Process stopped: check its last log lines, then start it. Only the admin port: \
                 check network policies and changes of the `admin` address.",
        silences: Vec::new(),
    }
}

fn connections_refused() -> Alert {
    Alert {
        name: "TokenweirConnectionsRefused",
        when: "a gateway refuses more than ten client connections in 5 minutes, because a limit is reached",
        area: AREA,
        severity: AlertSeverity::Page,
        expr: "sum by (instance) (increase(tokenweir_connections_refused_total{reason=\"full\"}[5m]))\n\
               + sum by (instance) (increase(tokenweir_accept_errors_total[5m])) > 10"
            .into(),
        holds_for: "1m",
        stays_for: Some("5m"),
        summary: "{{ $labels.instance }} refuses client connections",
        description: "{{ $labels.instance }} closed or did not accept {{ $value | humanize }} client \
                      connections in 5 minutes.",
        meaning: "The limit of connections (`limits.connections`) or of open files of the process is \
                  reached. Clients get 503 or a reset connection, and these requests are in no count of \
                  requests.",
        confirm: "`tokenweir_connections` beside `tokenweir_connections_limit`; \
                  `tokenweir_accept_errors_total` grows if the process has no file descriptor left.",
        action: "Raise `limits.connections` and the open files of the process (`LimitNOFILE=`, `ulimit \
                 -n`), or add a gateway. One client with many connections: \
                 `limits.connections_per_client`.",
        silences: Vec::new(),
    }
}

fn overhead() -> Alert {
    Alert {
        name: "TokenweirOverhead",
        when: "the overhead of the gateway is above 10 ms at p99",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "histogram_quantile(0.99, sum by (le) \
               (rate(tokenweir_gateway_overhead_seconds_bucket[5m]))) > 0.01\n\
               and sum(increase(tokenweir_gateway_overhead_seconds_count[5m])) > 100"
            .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "The gateway adds too much latency",
        description: "The p99 of the processing time of the gateway itself is \
                      {{ $value | humanizeDuration }}; it should be well below one millisecond.",
        meaning: "The gateway has too little CPU, or swaps.",
        confirm: "Dashboard, row Gateway: CPU and memory. Are the CPU limits lower than the usage?",
        action: "Give it more CPU, because a throttled gateway delays every request. Or run a \
                 second gateway.",
        silences: Vec::new(),
    }
}

fn request_open_long() -> Alert {
    Alert {
        name: "TokenweirRequestOpenLong",
        when: "a request has been in progress for more than 30 minutes",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "max by (instance) (tokenweir_oldest_request_age_seconds) > 1800".into(),
        holds_for: "5m",
        stays_for: None,
        summary: "A request of {{ $labels.instance }} does not end",
        description: "The oldest request of {{ $labels.instance }} has been in progress for \
                      {{ $value | humanizeDuration }}.",
        meaning: "A stream without end: a model that does not stop, a backend that hangs, or a \
                  client that does not read. Each holds a connection and a place in the batch.",
        confirm: "`tokenweir top` or the admin page: the oldest streams, with backend and phase.",
        action: "A model that does not stop: set `max_tokens` in its clients. A hung backend: see \
                 TokenweirEngineStuck. A client that does not read: set `write_timeout`. Are \
                 responses of half an hour usual? Then raise the limit of this alert.",
        silences: Vec::new(),
    }
}

fn token_drift() -> Alert {
    Alert {
        name: "TokenweirTokenDrift",
        when: "the gateways count 10 % more tokens than the engine, over one hour",
        area: AREA,
        severity: AlertSeverity::Ticket,
        // Only one direction is an error: an engine that also serves other clients, or finishes
        // requests whose clients disconnected, counts more. While its page cannot be scraped, the
        // counters of the engine stand still.
        expr: "tokenweir:token_drift:ratio_1h > 1.1\n\
               and on (backend, type)\n  \
               sum by (backend, type) (increase(tokenweir_backend_tokens_total[1h])) > 10000\n\
               and on (backend) max by (backend) (tokenweir_backend_scrape_age_seconds) < 60"
            .into(),
        holds_for: "30m",
        stays_for: None,
        summary: "Token counts of {{ $labels.backend }} differ from its engine",
        description: "Over one hour, the gateways counted {{ $value | humanizePercentage }} of the \
                      {{ $labels.type }} tokens that the engine of {{ $labels.backend }} counted.",
        meaning: "A token count of the gateway is too high: token limits and tenant accounts then \
                  charge too much. The alert detects no error while the engine also serves clients \
                  that bypass the gateway, because their tokens hide it.",
        confirm: "Dashboard *tokenweir: one backend*, panel *Tokens of the gateway ÷ tokens of the \
                  engine*: since when? `tokenweir_estimated_output_tokens_total`: are counts \
                  estimated, because the engine reports no usage?",
        action: "Estimated counts: set `usage: inject` for the backend. Exact counts: report the \
                 engine, its version and the ratio. A proxy between gateway and engine that \
                 answers from a cache has the same effect.",
        silences: Vec::new(),
    }
}

fn dropped_spans() -> Alert {
    Alert {
        name: "TokenweirSpansDropped",
        when: "more than 5 % of spans, and more than 100, are dropped in 10 minutes",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "sum(increase(tokenweir_otel_spans_total{result=\"queued\"}[10m]))\n\
               - sum(increase(tokenweir_otel_spans_total{result=\"exported\"}[10m])) > 100\n\
               and sum(increase(tokenweir_otel_spans_total{result=\"exported\"}[10m]))\n  \
               < 0.95 * sum(increase(tokenweir_otel_spans_total{result=\"queued\"}[10m]))"
            .into(),
        holds_for: "5m",
        stays_for: Some("10m"),
        summary: "Traces are incomplete",
        description: "{{ $value | humanize }} spans did not reach the collector in 10 minutes. \
                      Requests and metrics are not affected.",
        meaning: "The collector is down, slow or rejects spans. Some exemplars lead to no trace.",
        confirm: "The gateway's log has the error of the collector. `tokenweir_otel_spans_total`: \
                  `failed` grows if the collector rejects spans; otherwise the queue overflows \
                  because the collector is slow.",
        action: "Check the memory limit and the export queue of the collector. Or lower the rate \
                 of traces that are sampled without a special reason \
                 (`tracing.max_sampled_per_second`).",
        silences: Vec::new(),
    }
}

fn reload_failed() -> Alert {
    Alert {
        name: "TokenweirReloadFailed",
        when: "the last reload of the configuration failed",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "tokenweir_config_last_reload_successful == 0".into(),
        holds_for: "5m",
        stays_for: None,
        summary: "The configuration of {{ $labels.instance }} is invalid",
        description: "{{ $labels.instance }} could not use its configuration at the last reload, \
                      and keeps the previous one.",
        meaning: "The change is not active, and a gateway that starts with this file fails. \
                  Requests are not affected.",
        confirm: "The gateway's log has file, line and column. `tokenweir check FILE` reports the \
                  same; `curl http://GATEWAY:9090/config` shows the active configuration.",
        action: "Correct the file, or restore the previous one. Then run `curl -X POST \
                 http://GATEWAY:9090/-/reload`, unless `reload.watch` is on.",
        silences: Vec::new(),
    }
}

fn certificate_ends() -> Alert {
    Alert {
        name: "TokenweirCertificateEnds",
        when: "a certificate of the gateway expires within seven days",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "tokenweir_certificate_expiry_timestamp_seconds - time() < 7 * 86400".into(),
        holds_for: "15m",
        stays_for: None,
        summary: "A certificate of {{ $labels.instance }} expires soon",
        description: "The certificate that {{ $labels.instance }} presents to its \
                      {{ $labels.side }}s, or an intermediate certificate of its chain, expires in \
                      {{ $value | humanizeDuration }}.",
        meaning: "The certificate was not renewed in time, or the new one is not in the configured \
                  file. After the expiry, each side that verifies it rejects every new connection.",
        confirm: "`openssl x509 -enddate -noout -in FILE`, for the files of `tls`, `backend_tls` \
                  and the collectors. Does `failed` of `tokenweir_certificate_reloads_total` grow?",
        action: "Renew the certificate in the same file: the gateway reads it every 10 s, without \
                 a restart. For certificates with a lifetime of less than a week, use a shorter \
                 limit in this alert.",
        silences: Vec::new(),
    }
}

fn task_panicked() -> Alert {
    Alert {
        name: "TokenweirTaskPanicked",
        when: "a background task of the gateway has panicked",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "increase(tokenweir_task_panics_total[15m]) > 0".into(),
        holds_for: "1m",
        stays_for: None,
        summary: "A task of {{ $labels.instance }} panicked",
        description: "The task {{ $labels.task }} of {{ $labels.instance }} panicked in the last \
                      15 minutes. It is restarted after at most 30 s.",
        meaning: "A defect of the gateway. Requests continue, but the work of the task is late or \
                  missing: records of some requests for `record_sink`, a health check for \
                  `health_check`.",
        confirm: "The gateway's log: the line `the gateway panicked` has file and line, and the \
                  next line has the task.",
        action: "Report both log lines. If the task panics repeatedly, undo the last change: of \
                 the configuration, of the gateway's version, or of the servers behind it.",
        silences: Vec::new(),
    }
}
