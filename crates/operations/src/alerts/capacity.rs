//! Alerts about capacity: full KV caches, preemptions, queues and shed requests.

use super::alert::{Alert, AlertSeverity, inhibit_everywhere, inhibit_for_same_backend};
use crate::outcomes::{REFUSED_OUTCOME, share_by_model};

const AREA: &str = "capacity";

pub(super) fn alerts() -> Vec<Alert> {
    vec![
        kv_cache_exhausted(),
        kv_cache_nearly_full(),
        preemptions(),
        engine_queue_backlog(),
        requests_shed(),
        admission_backlog(),
    ]
}

fn kv_cache_exhausted() -> Alert {
    Alert {
        name: "TokenweirKvCacheExhausted",
        when: "KV usage is above 97 %, with preemptions or at least eight waiting requests",
        area: AREA,
        severity: AlertSeverity::Page,
        expr: "max by (backend) (tokenweir_backend_kv_usage_ratio) > 0.97\n\
               and on (backend) (\n  \
               sum by (backend) (rate(tokenweir_backend_preemptions_total[5m])) > 0.1\n  \
               or max by (backend) (tokenweir_backend_waiting_requests) >= 8\n)"
            .into(),
        holds_for: "2m",
        stays_for: Some("5m"),
        summary: "The KV cache of {{ $labels.backend }} is exhausted",
        description: "Requests occupy {{ $value | humanizePercentage }} of the KV cache of \
                      {{ $labels.backend }}, while others wait for blocks or are preempted and \
                      computed again.",
        meaning: "The backend has more load than memory. New requests wait, and running ones lose \
                  their blocks and start over. Time to first token and the gaps between tokens \
                  grow, and throughput falls while the GPU is busy.",
        confirm: "Dashboard, row Cache efficiency: KV usage of every backend. One full cache among \
                  empty ones: routing, or one long session. All full: demand.",
        action: "All full: add backends. Until they are available, lower `admission.max_kv_usage` \
                 to 0.9 so that requests wait in the gateway, and put batch work into a low class. \
                 One full: `/decisions` shows why it is chosen; or lower its `weight`. \
                 Permanently: a shorter `--max-model-len`, an fp8 KV cache, a smaller \
                 `--max-num-seqs`.",
        silences: vec![
            inhibit_for_same_backend("TokenweirKvCacheNearlyFull"),
            inhibit_for_same_backend("TokenweirEngineQueueBacklog"),
            inhibit_for_same_backend("TokenweirPreemptions"),
        ],
    }
}

fn kv_cache_nearly_full() -> Alert {
    Alert {
        name: "TokenweirKvCacheNearlyFull",
        when: "KV usage is above 90 %, with preemptions or waiting requests",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "max by (backend) (tokenweir_backend_kv_usage_ratio) > 0.9\n\
               and on (backend) (\n  \
               sum by (backend) (increase(tokenweir_backend_preemptions_total[5m])) > 0\n  \
               or max by (backend) (tokenweir_backend_waiting_requests) > 0\n)"
            .into(),
        holds_for: "5m",
        stays_for: Some("10m"),
        summary: "The KV cache of {{ $labels.backend }} is nearly full, and requests are affected",
        description: "Requests have occupied {{ $value | humanizePercentage }} of the KV cache of \
                      {{ $labels.backend }} for five minutes, and some of them waited or were \
                      preempted.",
        meaning: "The backend is at its capacity. A full cache alone causes no harm and no alert; \
                  here requests have begun to wait for it.",
        confirm: "Dashboard, row Cache efficiency, over a day: a daily peak or a trend?",
        action: "Plan capacity before TokenweirKvCacheExhausted fires. The panels of tokens show \
                 longer prompts, or a client without `max_tokens`.",
        silences: vec![inhibit_for_same_backend("TokenweirEngineQueueBacklog")],
    }
}

fn preemptions() -> Alert {
    Alert {
        name: "TokenweirPreemptions",
        when: "a backend preempts more than ten times in 10 minutes",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "sum by (backend) (increase(tokenweir_backend_preemptions_total[10m])) > 10".into(),
        holds_for: "5m",
        stays_for: Some("10m"),
        summary: "{{ $labels.backend }} preempts requests",
        description: "In 10 minutes, {{ $labels.backend }} took the KV blocks of a running request \
                      {{ $value | humanize }} times. Such a request is computed again.",
        meaning: "The engine runs more sequences than its cache can finish. Each preemption is \
                  work that is done twice, and a client sees the text pause.",
        confirm: "`tokenweir_slow_requests_total{cause=\"preempted\"}`, and the stall events of \
                  traces.",
        action: "Lower `--max-num-seqs` of the backend, or `admission.max_kv_usage`, or raise \
                 `routing.kv_aware.pressure` so that other backends are preferred earlier.",
        silences: Vec::new(),
    }
}

fn engine_queue_backlog() -> Alert {
    Alert {
        name: "TokenweirEngineQueueBacklog",
        when: "the queue of an engine is never empty, and requests wait there for more than 1 s \
               on average",
        area: AREA,
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
        meaning: "The backend gets more requests than it can start. Requests in its queue can no \
                  longer go to another backend.",
        confirm: "Dashboard, row Queue and scheduling: one backend or all?",
        action: "All: add backends. One: it is slower than the others or gets more requests, see \
                 `tokenweir_routing_prediction_ratio`. Lower `admission.max_waiting` so that \
                 requests wait in the gateway, where the first backend with capacity takes them.",
        silences: Vec::new(),
    }
}

fn requests_shed() -> Alert {
    Alert {
        name: "TokenweirRequestsShed",
        when: "more than 5 % of the requests of a model, or of all models together, are refused",
        area: AREA,
        severity: AlertSeverity::Page,
        expr: share_by_model(REFUSED_OUTCOME, 20).into(),
        holds_for: "2m",
        stays_for: Some("5m"),
        summary: "Requests{{ with $labels.gen_ai_request_model }} of {{ . }}{{ end }} are refused",
        description: "{{ $value | humanizePercentage }} of the requests of the last five minutes \
                      were answered with 429 or 503 by the gateway.",
        meaning: "The demand has been above the capacity for longer than the admission queue can \
                  absorb, or backends that should take requests are down or drained. Accepted \
                  requests are served normally; refused requests get the time after which they may \
                  retry.",
        confirm: "`tokenweir diagnose` has the verdict `shedding` with its cause, and the backends \
                  that are drained or down. Dashboard, row Queue and scheduling: reasons of shed \
                  requests, and the queue by class. If one tenant floods the gateway, only its \
                  requests are shed.",
        action: "Undrain or restart backends that are missing. Otherwise add backends. If low classes are shed and high ones are not, admission works as \
                 configured. If it is one tenant, contact it. `admission.queue_capacity` and \
                 `admission.max_wait` only trade a rejection for a longer wait.",
        silences: vec![
            inhibit_everywhere("TokenweirAdmissionBacklog"),
            inhibit_everywhere("TokenweirEngineQueueBacklog"),
        ],
    }
}

fn admission_backlog() -> Alert {
    Alert {
        name: "TokenweirAdmissionBacklog",
        when: "the p95 of the wait in the gateway is above 5 s",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "histogram_quantile(0.95, sum by (le) \
               (rate(tokenweir_queue_wait_seconds_bucket[5m]))) > 5\n\
               and sum(increase(tokenweir_queue_wait_seconds_count[5m])) > 20"
            .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "Requests wait long in the gateway",
        description: "Of the requests that waited for a backend with capacity, 5 % waited for more \
                      than {{ $value | humanizeDuration }}.",
        meaning: "Every backend is full, and requests wait in the gateway. They are not shed yet, \
                  but slow.",
        confirm: "Dashboard, row Queue and scheduling: waiting requests by class, and the waiting \
                  time.",
        action: "As for TokenweirRequestsShed, which fires next.",
        silences: Vec::new(),
    }
}
