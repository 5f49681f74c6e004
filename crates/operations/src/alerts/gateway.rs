//! Alerts about the gateway itself: its availability, its overhead, its token counts and its background
//! tasks.

use super::alert::{Alert, AlertSeverity, Runbook};

pub(super) fn alerts() -> Vec<Alert> {
    vec![gateway_down(), overhead(), request_open_long(), token_drift(), task_panicked()]
}

fn gateway_down() -> Alert {
    Alert {
        name: "TokenweirDown",
        severity: AlertSeverity::Page,
        // If a pod of a gateway is gone, Prometheus has no scrape target for it, and so no series `up` with
        // the value 0.
        expr: "up{job=\"tokenweir\"} == 0\nor absent(up{job=\"tokenweir\"})\n\
               or sum(up{job=\"tokenweir\"} offset 1h) unless sum(up{job=\"tokenweir\"})"
            .into(),
        holds_for: "1m",
        stays_for: None,
        summary: "{{ with $labels.instance }}The gateway {{ . }} cannot be scraped{{ else }}No gateway \
                  {{ with $labels.cluster }}of {{ . }} {{ end }}is a target of Prometheus{{ end }}",
        description: "The metrics {{ with $labels.instance }}of {{ . }} {{ end }}have been unreadable for \
                      a minute. The state of its requests is unknown.",
        runbook: Runbook::Own {
            meaning: "A gateway cannot be scraped, or none of a cluster is left as a target. No \
                      other alert can fire for it.",
            confirm: "`curl http://GATEWAY:9090/livez`.",
            action: "If the process stopped, read its last log lines. If only the admin port \
                     fails, check network policies and the `admin` address.",
        },
    }
}

fn overhead() -> Alert {
    Alert {
        name: "TokenweirOverhead",
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
        runbook: Runbook::Own {
            meaning: "The p99 of the gateway's own processing is above 10 ms; below 1 ms is \
                      usual.",
            confirm: "Dashboard, row Gateway: CPU and memory.",
            action: "Give the gateway more CPU, or run a second gateway.",
        },
    }
}

fn request_open_long() -> Alert {
    Alert {
        name: "TokenweirRequestOpenLong",
        severity: AlertSeverity::Ticket,
        expr: "max by (instance) (tokenweir_oldest_request_age_seconds) > 1800".into(),
        holds_for: "5m",
        stays_for: None,
        summary: "A request of {{ $labels.instance }} does not end",
        description: "The oldest request of {{ $labels.instance }} has been in progress for \
                      {{ $value | humanizeDuration }}.",
        runbook: Runbook::Own {
            meaning: "A request has been in progress for 30 minutes.",
            confirm: "`tokenweir top`: the oldest streams.",
            action: "For a model that does not stop, set `max_tokens`. For a client that does not \
                     read, set `write_timeout`. If such requests are usual, raise the limit of \
                     this alert.",
        },
    }
}

fn token_drift() -> Alert {
    Alert {
        name: "TokenweirTokenDrift",
        severity: AlertSeverity::Ticket,
        // Only too high counts of the gateways are an error. The engine may count more: it can also serve
        // other clients, or finish requests whose clients disconnected. While its page cannot be scraped, the
        // counters of the engine do not change, so the page must be recent.
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
        runbook: Runbook::Own {
            meaning: "In an hour the gateways counted 10 % more tokens than the engine, so token \
                      limits charge too much.",
            confirm: "`tokenweir_estimated_output_tokens_total`: does the engine report no \
                      usage?",
            action: "If it reports none, set `usage: inject`. If it does, report the engine, its \
                     version and the ratio.",
        },
    }
}

fn task_panicked() -> Alert {
    Alert {
        name: "TokenweirTaskPanicked",
        severity: AlertSeverity::Ticket,
        expr: "increase(tokenweir_task_panics_total[15m]) > 0".into(),
        holds_for: "1m",
        stays_for: None,
        summary: "A task of {{ $labels.instance }} panicked",
        description: "The task {{ $labels.task }} of {{ $labels.instance }} panicked in the last \
                      15 minutes. It is restarted after at most 30 s.",
        runbook: Runbook::Own {
            meaning: "A background task panicked because of a defect of the gateway. It restarts \
                      within 30 s.",
            confirm: "The log: `the gateway panicked`.",
            action: "Report this line and the next. If it repeats, undo the last change.",
        },
    }
}
