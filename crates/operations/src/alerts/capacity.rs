//! Too little room: KV caches that are full, and queues before them.

use super::{Alert, Severity, everywhere, of_same_backend};

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
        when: "a KV cache is above 97 %, and it preempts or eight requests wait",
        area: AREA,
        severity: Severity::Page,
        expr: "max by (backend) (tokenweir_backend_kv_usage_ratio) > 0.97\n\
               and on (backend) (\n  \
               sum by (backend) (rate(tokenweir_backend_preemptions_total[5m])) > 0.1\n  \
               or max by (backend) (tokenweir_backend_waiting) >= 8\n)"
            .into(),
        holds_for: "2m",
        stays_for: Some("5m"),
        summary: "The KV cache of {{ $labels.backend }} is exhausted",
        description: "{{ $value | humanizePercentage }} of the KV cache of {{ $labels.backend }} is held by \
                      requests, while others wait for room or are thrown out and computed again.",
        meaning: "The replica has more work than memory. New requests wait, running ones lose their \
                  blocks and start over: time to first token and gaps between tokens both grow, and \
                  throughput falls while the GPU is busy.",
        confirm: "Dashboard, row Cache efficiency: usage of every replica. One full among empty ones is \
                  routing or one long session; all full is demand.",
        action: "All full: add replicas; until they are there, lower `admission.max_kv_usage` to 0.9 so \
                 that requests wait in the gateway, and put batch work into a low class. One full: see \
                 `/explain` why it is chosen, or set its `weight` lower. For good: shorter \
                 `--max-model-len`, fp8 KV cache, a smaller `--max-num-seqs`.",
        silences: vec![
            of_same_backend("TokenweirKvCacheNearlyFull"),
            of_same_backend("TokenweirEngineQueueBacklog"),
            of_same_backend("TokenweirPreemptions"),
        ],
    }
}

fn kv_cache_nearly_full() -> Alert {
    Alert {
        name: "TokenweirKvCacheNearlyFull",
        when: "a KV cache is above 90 %, and it preempts or a request waits",
        area: AREA,
        severity: Severity::Ticket,
        expr: "max by (backend) (tokenweir_backend_kv_usage_ratio) > 0.9\n\
               and on (backend) (\n  \
               sum by (backend) (increase(tokenweir_backend_preemptions_total[5m])) > 0\n  \
               or max by (backend) (tokenweir_backend_waiting) > 0\n)"
            .into(),
        holds_for: "5m",
        stays_for: Some("10m"),
        summary: "The KV cache of {{ $labels.backend }} is nearly full, and requests feel it",
        description: "{{ $value | humanizePercentage }} of the KV cache of {{ $labels.backend }} is held by \
                      requests, and some wait or were preempted. It has been so for five minutes.",
        meaning: "The replica is at the end of its room. A full cache alone is no harm and no alert; \
                  here requests have begun to wait for it.",
        confirm: "Dashboard, row Cache efficiency, over a day: a daily peak or a trend?",
        action: "Plan capacity before TokenweirKvCacheExhausted does it for you. Prompts that got \
                 longer, or a client without `max_tokens`, show in the panels of tokens.",
        silences: vec![of_same_backend("TokenweirEngineQueueBacklog")],
    }
}

fn preemptions() -> Alert {
    Alert {
        name: "TokenweirPreemptions",
        when: "a replica preempts more than ten times in 10 minutes",
        area: AREA,
        severity: Severity::Ticket,
        expr: "sum by (backend) (increase(tokenweir_backend_preemptions_total[10m])) > 10".into(),
        holds_for: "5m",
        stays_for: Some("10m"),
        summary: "{{ $labels.backend }} preempts requests",
        description: "{{ $value | humanize }} times in 10 minutes {{ $labels.backend }} took the KV blocks of \
                      a running request, which must be computed again.",
        meaning: "The engine lets more sequences run than its cache can finish. Each preemption is work \
                  that is done twice, and a user who sees the text stop.",
        confirm: "`tokenweir_slow_requests_total{cause=\"preempted\"}`, and the stall events of traces.",
        action: "Lower `--max-num-seqs` of the replica, or `admission.max_kv_usage`, or raise \
                 `routing.kv_aware.pressure` so that other replicas are preferred sooner.",
        silences: Vec::new(),
    }
}

fn engine_queue_backlog() -> Alert {
    Alert {
        name: "TokenweirEngineQueueBacklog",
        when: "an engine's queue is never empty, and costs a stream more than 1 s",
        area: AREA,
        severity: Severity::Ticket,
        expr: "min by (backend) (min_over_time(tokenweir_backend_waiting[5m])) > 0\n\
               and on (backend)\n  \
               sum by (backend) (rate(tokenweir_phase_seconds_sum{phase=\"queue\"}[5m]))\n  \
               / sum by (backend) (rate(tokenweir_phase_seconds_count{phase=\"queue\"}[5m])) > 1\n\
               and on (backend)\n  \
               sum by (backend) (increase(tokenweir_phase_seconds_count{phase=\"queue\"}[5m])) > 10"
            .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "Requests queue in the engine of {{ $labels.backend }}",
        description: "The queue of {{ $labels.backend }} was never empty in the last five minutes (at least \
                      {{ $value }} waited), and a stream waits there for more than a second on the mean.",
        meaning: "The replica gets more than it can start. Requests in its queue cannot go to another \
                  replica any more.",
        confirm: "Dashboard, row Queue and scheduling: is it one replica or all?",
        action: "All: more replicas. One: it is slower than the others or was given more, see \
                 `tokenweir_route_prediction_ratio`. Lower `admission.max_waiting` so that requests \
                 wait in the gateway, where the first free replica takes them.",
        silences: Vec::new(),
    }
}

fn requests_shed() -> Alert {
    Alert {
        name: "TokenweirRequestsShed",
        when: "more than 5 % of requests find no room",
        area: AREA,
        severity: Severity::Page,
        expr:
            "sum(rate(tokenweir_shed_total[5m])) / sum(rate(tokenweir_requests_total[5m])) > 0.05\n\
               and sum(increase(tokenweir_shed_total[5m])) > 20"
                .into(),
        holds_for: "2m",
        stays_for: Some("5m"),
        summary: "Requests are refused because every replica is full",
        description: "{{ $value | humanizePercentage }} of the requests of the last five minutes were \
                      answered 429.",
        meaning: "Demand is above capacity for longer than the waiting room can hold. What is served is \
                  still served well; the rest is told when to come again.",
        confirm: "Dashboard, row Queue and scheduling: reasons of refusals, and the queue by class. One \
                  tenant that floods is refused alone, and the others do not feel it.",
        action: "Add replicas. If low classes are refused and high ones are not, it works as configured. \
                 If it is one tenant, talk to them. `admission.room` and `max_wait` only trade a \
                 refusal for a longer wait.",
        silences: vec![
            everywhere("TokenweirAdmissionBacklog"),
            everywhere("TokenweirEngineQueueBacklog"),
        ],
    }
}

fn admission_backlog() -> Alert {
    Alert {
        name: "TokenweirAdmissionBacklog",
        when: "the p95 of the wait in the gateway is above 5 s",
        area: AREA,
        severity: Severity::Ticket,
        expr: "histogram_quantile(0.95, sum by (le) (rate(tokenweir_queue_wait_seconds_bucket[5m]))) > 5\n\
               and sum(increase(tokenweir_queue_wait_seconds_count[5m])) > 20"
            .into(),
        holds_for: "5m",
        stays_for: Some("5m"),
        summary: "Requests wait long in the gateway",
        description: "Of the requests that had to wait for a replica with room, 5 % waited for more than \
                      {{ $value | humanizeDuration }}.",
        meaning: "Every replica is full, and requests wait in the gateway: not refused yet, but slow.",
        confirm: "Dashboard, row Queue and scheduling: waiting requests by class, and how long.",
        action: "As for TokenweirRequestsShed, which comes next.",
        silences: Vec::new(),
    }
}
