//! Replicas that fail, fall silent or are not what they say.

use super::{Alert, Severity, everywhere, of_same_backend};

const AREA: &str = "replicas";

pub(super) fn alerts() -> Vec<Alert> {
    vec![no_backend(), backend_down(), engine_stuck(), stalls(), stale_scrape()]
}

fn no_backend() -> Alert {
    Alert {
        name: "TokenweirNoBackend",
        when: "no replica may be sent requests",
        area: AREA,
        severity: Severity::Page,
        expr: "max(tokenweir_backend_up) == 0".into(),
        holds_for: "30s",
        stays_for: None,
        summary: "No replica may be sent requests",
        description: "Every replica is down, asleep, drained, of weight 0 or ejected. Every request is \
                      answered 503.",
        meaning: "The service is down for everybody.",
        confirm: "`curl http://GATEWAY:9090/readyz` counts the replicas by state; `/status` has the state \
                  and the reason of each.",
        action: "Asleep, drained or of weight 0: somebody did that, and can undo it. Down all at once is seldom the replicas: look for a network change, a deployment, an expired \
                 `api_key`. Else start one replica; the gateway finds it within seconds, by itself.",
        silences: vec![
            everywhere("TokenweirBackendDown"),
            everywhere("TokenweirStaleScrape"),
            everywhere("TokenweirErrors"),
            everywhere("TokenweirThroughputDrop"),
        ],
    }
}

fn backend_down() -> Alert {
    Alert {
        name: "TokenweirBackendDown",
        when: "a replica is down",
        area: AREA,
        severity: Severity::Ticket,
        // Of the two states one has 1: for every gateway that watches it.
        expr: "min by (backend) (\n  \
               sum without (state) (tokenweir_backend_state{state=~\"down|unknown\"})\n\
               ) == 1"
            .into(),
        holds_for: "1m",
        stays_for: Some("2m"),
        summary: "Replica {{ $labels.backend }} is down",
        description: "{{ $labels.backend }} has been down for a minute. The others have its work.",
        meaning: "The replica does not answer its health check, refuses connections, or makes no token. \
                  Clients do not notice while the others have room.",
        confirm: "`curl http://GATEWAY:9090/status`: `reason` of the replica. Then its own log: an \
                  engine that died says `EngineDeadError`, one without memory `CUDA out of memory`.",
        action: "Restart the replica. It joins by itself. If the others' queues grow, this one is \
                 urgent: see TokenweirKvCacheExhausted and TokenweirRequestsShed.",
        silences: vec![
            of_same_backend("TokenweirStaleScrape"),
            of_same_backend("TokenweirEngineStuck"),
            of_same_backend("TokenweirStalls"),
        ],
    }
}

fn engine_stuck() -> Alert {
    Alert {
        name: "TokenweirEngineStuck",
        when: "at least three streams of a replica stand still: more than half of its requests, or none begins",
        area: AREA,
        severity: Severity::Page,
        // Requests that are sent to it meanwhile wait for their first output, and are not stalled.
        expr: "sum by (backend) (tokenweir_streams_stalled) >= 3\n\
               and (\n  \
               sum by (backend) (tokenweir_streams_stalled)\n    \
               > 0.5 * sum by (backend) (tokenweir_backend_requests_in_flight)\n  \
               or sum by (backend)\n    \
               (increase(gen_ai_server_time_to_first_token_seconds_count[2m])) == 0\n\
               )"
        .into(),
        holds_for: "1m",
        stays_for: None,
        summary: "Most streams of {{ $labels.backend }} stand still",
        description: "{{ $value }} streams of {{ $labels.backend }} have been silent for longer than its \
                      streams ever are. They are more than half of what it has, or it has begun no \
                      other stream for two minutes.",
        meaning: "The engine hangs while its server still answers health checks: a stuck collective, a \
                  GPU that fell off the bus, a paused process. Its users see answers that stop in \
                  the middle of a sentence.",
        confirm: "Dashboard One replica: running requests, and no tokens. On the machine: \
                  `nvidia-smi`, `dmesg | grep -i xid`, the engine's log.",
        action: "Set `weight: 0` for the replica, or stop it: its streams are cut and clients ask again. \
                 `stalls.abort_after` in the configuration does that by itself.",
        silences: vec![of_same_backend("TokenweirStalls")],
    }
}

fn stalls() -> Alert {
    Alert {
        name: "TokenweirStalls",
        when: "more than five streams of a replica paused in 10 minutes",
        area: AREA,
        severity: Severity::Ticket,
        expr: "sum by (backend) (increase(tokenweir_stalls_total[10m])) > 5".into(),
        holds_for: "1m",
        stays_for: Some("10m"),
        summary: "Streams of {{ $labels.backend }} pause",
        description: "{{ $value | humanize }} times in 10 minutes a stream of {{ $labels.backend }} fell \
                      silent for much longer than usual, and most went on.",
        meaning: "Users see text that freezes and goes on. The usual cause is preemption or a very long \
                  prompt that holds up the batch.",
        confirm: "Jaeger: traces with `tokenweir.kept=stalled`. The event of each stall has the KV usage, \
                  the batch and the preemptions at that moment.",
        action: "With preemptions: see TokenweirPreemptions. With long prompts: let vLLM compute them in \
                 smaller pieces (`--max-num-batched-tokens`). With neither: the machine, see \
                 TokenweirEngineStuck.",
        silences: Vec::new(),
    }
}

fn stale_scrape() -> Alert {
    Alert {
        name: "TokenweirStaleScrape",
        when: "what a replica last said of itself is older than 20 s",
        area: AREA,
        severity: Severity::Ticket,
        expr: "min by (backend) (tokenweir_backend_snapshot_age_seconds) > 20".into(),
        holds_for: "1m",
        stays_for: None,
        summary: "{{ $labels.backend }} has not told its load for a while",
        description: "What {{ $labels.backend }} last said of itself is {{ $value | humanizeDuration }} old. \
                      It is still sent requests, by what the gateway knows itself.",
        meaning: "The metrics page of the replica cannot be read: it answers too slowly, not at all, or \
                  something else. Routing gets worse, not wrong: an old page counts less and less.",
        confirm: "`rate(tokenweir_scrape_errors_total[5m])` names the kind; \
                  `time curl http://REPLICA/metrics | tail -3` shows it.",
        action: "`timeout`: the API server is overloaded; give it more CPU or API processes. `too_large`: \
                 raise `watch.max_page`. A status or garbage: a proxy stands between, or the replica \
                 was started without metrics.",
        silences: Vec::new(),
    }
}
