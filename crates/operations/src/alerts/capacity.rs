//! Alerts about capacity: queues and refused requests. No verdict has their conditions: a share of the
//! requests of one model, and an engine queue that does not harm requests yet. For the wait in the gateway,
//! there is the verdict `gateway_queue`.

use super::alert::{Alert, AlertSeverity, Runbook};
use crate::outcomes::{REFUSED_OUTCOME, share_by_model};

pub(super) fn alerts() -> Vec<Alert> {
    vec![engine_queue_backlog(), requests_shed()]
}

fn engine_queue_backlog() -> Alert {
    Alert {
        name: "TokenweirEngineQueueBacklog",
        severity: AlertSeverity::Ticket,
        expr: "min by (backend) (min_over_time(tokenweir_backend_waiting_requests[5m])) > 0\n\
               and on (backend)\n  \
               max by (backend) (rate(tokenweir_engine_queue_seconds_total[5m]))\n  \
               / max by (backend) (rate(tokenweir_engine_queued_requests_total[5m])) > 1\n\
               and on (backend)\n  \
               max by (backend) (increase(tokenweir_engine_queued_requests_total[5m])) > 10"
            .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "Requests queue in the engine of {{ $labels.backend }}",
        description: "The engine queue of {{ $labels.backend }} was never empty in the last five \
                      minutes (at least {{ $value }} requests waited), and a request waits there \
                      for more than a second on average.",
        runbook: Runbook::Own {
            meaning: "An engine's queue is never empty, and requests wait there for a second on \
                      average.",
            confirm: "Dashboard, row Queue and scheduling: does one backend queue requests, or do \
                      all?",
            action: "If all do, add backends. If one does, compare its share of cached tokens with \
                     that of the others: requests follow their prefix. \
                     `admission.max_in_flight` limits what one backend gets.",
        },
    }
}

fn requests_shed() -> Alert {
    Alert {
        name: "TokenweirRequestsShed",
        severity: AlertSeverity::Page,
        expr: share_by_model(REFUSED_OUTCOME, 20).into(),
        holds_for: "2m",
        stays_for: Some("5m"),
        summary: "Requests{{ with $labels.gen_ai_request_model }} of {{ . }}{{ end }} are refused",
        description: "{{ $value | humanizePercentage }} of the requests of the last five minutes \
                      were answered with 429 or 503 by the gateway.",
        runbook: Runbook::Own {
            meaning: "More than 5 % of the requests of a model, or of all, are refused.",
            confirm: "The verdict `shedding`. Dashboard, row Queue and scheduling: reasons, \
                      classes, tenants.",
            action: "Undrain or restart missing backends, or add some.",
        },
    }
}
