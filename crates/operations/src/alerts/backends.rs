//! Alerts about backends that are down or drained, whose engine is stuck, whose streams stall, or whose
//! scrapes fail.

use super::alert::{Alert, AlertSeverity, inhibit_everywhere, inhibit_for_same_backend};

const AREA: &str = "backends";

pub(super) fn alerts() -> Vec<Alert> {
    vec![
        no_backend(),
        backend_down(),
        backend_drained(),
        engine_stuck(),
        stalls(),
        stale_scrape(),
        kv_events_missing(),
        peer_exchange_down(),
    ]
}

fn no_backend() -> Alert {
    Alert {
        name: "TokenweirNoBackend",
        when: "no backend is available",
        area: AREA,
        severity: AlertSeverity::Page,
        expr: "max(tokenweir_backend_up) == 0".into(),
        holds_for: "30s",
        stays_for: None,
        summary: "No backend is available",
        description: "Every backend is down, asleep, drained, of weight 0 or ejected. Every \
                      request is answered with 503.",
        meaning: "The service is down for all clients.",
        confirm: "`curl http://GATEWAY:9090/readyz` counts the backends by state; `/status` has \
                  the state and the reason of each.",
        action: "Asleep, drained or of weight 0: undo that action. If all backends went down at \
                 once, the cause is seldom the backends: check for a network change, a deployment, \
                 or an expired `api_key`. Otherwise start one backend; the gateway finds it within \
                 seconds.",
        silences: vec![
            inhibit_everywhere("TokenweirBackendDown"),
            inhibit_everywhere("TokenweirStaleScrape"),
            inhibit_everywhere("TokenweirErrors"),
            inhibit_everywhere("TokenweirRequestsShed"),
            inhibit_everywhere("TokenweirThroughputDrop"),
        ],
    }
}

fn backend_down() -> Alert {
    Alert {
        name: "TokenweirBackendDown",
        when: "a backend is down",
        area: AREA,
        severity: AlertSeverity::Ticket,
        // Each gateway exports 1 for exactly one state of a backend. The minimum requires that all
        // gateways report the backend as down or unknown.
        expr: "min by (backend) (\n  \
               sum without (state) (tokenweir_backend_state{state=~\"down|unknown\"})\n\
               ) == 1"
            .into(),
        holds_for: "1m",
        stays_for: Some("2m"),
        summary: "Backend {{ $labels.backend }} is down",
        description: "{{ $labels.backend }} has been down for a minute. The other backends serve \
                      its load.",
        meaning: "The backend does not answer its health check, refuses connections, or generates \
                  no tokens. Clients are not affected while the other backends have capacity.",
        confirm: "`curl http://GATEWAY:9090/status`: the `reason` of the backend. Then its own \
                  log: a dead engine logs `EngineDeadError`, one without memory `CUDA out of \
                  memory`.",
        action: "Restart the backend. The gateway uses it again automatically. If the queues of \
                 the other backends grow, this is urgent: see TokenweirKvCacheExhausted and \
                 TokenweirRequestsShed.",
        silences: vec![
            inhibit_for_same_backend("TokenweirStaleScrape"),
            inhibit_for_same_backend("TokenweirEngineStuck"),
            inhibit_for_same_backend("TokenweirStalls"),
        ],
    }
}

fn backend_drained() -> Alert {
    Alert {
        name: "TokenweirBackendDrained",
        when: "a backend has been drained for an hour",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "max by (backend) (tokenweir_backend_state{state=\"drained\"}) == 1".into(),
        holds_for: "1h",
        stays_for: None,
        summary: "Backend {{ $labels.backend }} is still drained",
        description: "{{ $labels.backend }} has been drained for an hour: at least one gateway \
                      sends it no requests.",
        meaning: "The backend costs money and serves nothing. A drain without an expiry is easily \
                  forgotten.",
        confirm: "`curl http://GATEWAY:9090/status`: `drain` of the backend has who drained it, \
                  when, and why.",
        action: "End the drain: `curl -X POST -H 'content-type: application/json' \
                 'http://GATEWAY:9090/-/undrain?backend=NAME'`, or remove `drained: true` from the \
                 configuration. For a planned work, drain with an expiry: `&for=2h`. If the \
                 backend is not needed, remove it.",
        silences: Vec::new(),
    }
}

fn engine_stuck() -> Alert {
    Alert {
        name: "TokenweirEngineStuck",
        when: "at least three streams of a backend are stalled: more than half of its requests, or \
               no stream begins",
        area: AREA,
        severity: AlertSeverity::Page,
        // The condition has two alternatives, because new requests to a stuck engine wait for their
        // first output and do not count as stalled. They can make the share of stalled streams
        // small.
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
        summary: "Most streams of {{ $labels.backend }} are stalled",
        description: "{{ $value }} streams of {{ $labels.backend }} are stalled: they have been \
                      without output for much longer than usual. They are more than half of its \
                      requests, or no other stream has begun there for two minutes.",
        meaning: "The engine hangs while its server still answers health checks: a stuck \
                  collective, a GPU that is no longer on the bus, a paused process. Clients see \
                  responses that stop in the middle.",
        confirm: "Dashboard *tokenweir: one backend*: running requests, and no tokens. On the \
                  machine: `nvidia-smi`, `dmesg | grep -i xid`, the engine's log.",
        action: "Set `weight: 0` for the backend, or stop it: its streams are cut and clients send \
                 their requests again. With `stalls.abort_after` in the configuration, the gateway \
                 does this automatically.",
        silences: vec![inhibit_for_same_backend("TokenweirStalls")],
    }
}

fn stalls() -> Alert {
    Alert {
        name: "TokenweirStalls",
        when: "more than five streams of a backend stalled in 10 minutes",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "sum by (backend) (increase(tokenweir_stalls_total[10m])) > 5".into(),
        holds_for: "1m",
        stays_for: Some("10m"),
        summary: "Streams of {{ $labels.backend }} stall",
        description: "In 10 minutes, streams of {{ $labels.backend }} stalled \
                      {{ $value | humanize }} times, and most of them continued.",
        meaning: "Clients see text that freezes and continues. The usual cause is preemption, or a \
                  very long prompt that delays the batch.",
        confirm: "Jaeger: traces with `tokenweir.sample_reason=stalled`. The event of each stall has the KV \
                  usage, the batch and the preemptions at that time.",
        action: "With preemptions: see TokenweirPreemptions. With long prompts: let vLLM compute \
                 them in smaller pieces (`--max-num-batched-tokens`). With neither: check the \
                 machine, see TokenweirEngineStuck.",
        silences: Vec::new(),
    }
}

fn stale_scrape() -> Alert {
    Alert {
        name: "TokenweirStaleScrape",
        when: "the last scrape of a backend is older than 20 s",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "min by (backend) (tokenweir_backend_scrape_age_seconds) > 20".into(),
        holds_for: "1m",
        stays_for: None,
        summary: "The load of {{ $labels.backend }} is stale",
        description: "The last scrape of {{ $labels.backend }} is {{ $value | humanizeDuration }} \
                      old. The gateway still routes requests there, based on its own requests.",
        meaning: "The metrics page of the backend cannot be read: it responds too slowly, not at \
                  all, or with something else. Routing becomes less accurate, because the weight \
                  of an old scrape decreases.",
        confirm: "`rate(tokenweir_scrape_errors_total[5m])` has the kind of the error; `time curl \
                  http://BACKEND/metrics | tail -3` shows it.",
        action: "`timeout`: the API server is overloaded; give it more CPU or API processes. \
                 `too_large`: raise `scrape.max_page`. A status or an unreadable page: a proxy is \
                 in between, or the backend was started without metrics.",
        silences: Vec::new(),
    }
}

fn kv_events_missing() -> Alert {
    Alert {
        name: "TokenweirKvEventsMissing",
        when: "the KV events of a backend cannot be used for 5 minutes",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "max by (backend) (tokenweir_backend_kv_events_state{state=~\"off|gap\"}) == 1\n\
               and on (backend) max by (backend) (tokenweir_backend_up) == 1"
            .into(),
        holds_for: "5m",
        stays_for: None,
        summary: "The KV events of {{ $labels.backend }} cannot be used",
        description: "At least one gateway has received no usable KV events of \
                      {{ $labels.backend }} for 5 minutes. It estimates the cached prefixes there \
                      from its own requests.",
        meaning: "Requests are served as before. With several gateways, or after evictions, more \
                  prompts are computed again than necessary.",
        confirm: "`curl http://GATEWAY:9090/status`: `kv_events` of the backend. `curl \
                  http://BACKEND/kv_event_sources` has the ports; `tokenweir doctor` connects to \
                  them.",
        action: "State `off`: start the engine with `--kv-events-config` and an `endpoint` with \
                 `*`, such as `tcp://*:5557`, and let the gateway reach the port. State `gap`: \
                 add a `replay_endpoint`. An engine without events: `kv_events: {enabled: false}` \
                 of the backend.",
        silences: Vec::new(),
    }
}

fn peer_exchange_down() -> Alert {
    Alert {
        name: "TokenweirPeerExchangeDown",
        when: "a gateway has had no connection to the message bus of the gateways for 5 minutes",
        area: AREA,
        severity: AlertSeverity::Ticket,
        expr: "tokenweir_peer_exchange_connected == 0".into(),
        holds_for: "5m",
        stays_for: None,
        summary: "{{ $labels.instance }} has no connection to the message bus of the gateways",
        description: "The gateway has not been connected to the server of `peer_exchange.url` for 5 \
                      minutes. It estimates caches and queues from its own requests and from \
                      metrics.",
        meaning: "Requests are served as before. Several gateways compute more prompts again than \
                  necessary, because each does not know the prompts of the others.",
        confirm: "`curl http://GATEWAY:9090/status`: `peer_exchange.error`. `redis-cli -u URL ping` \
                  from the host of the gateway.",
        action: "Restart the server or open the network path to it. The gateway connects again by \
                 itself within 5 s. A refused password or user: mend `peer_exchange.username` and \
                 `peer_exchange.password`, and restart the gateway.",
        silences: Vec::new(),
    }
}
