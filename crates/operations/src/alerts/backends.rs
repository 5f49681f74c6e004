//! Alerts about lost KV events, about a lost connection between gateways, and about faulty GPUs. Other faults
//! of backends are verdicts of the diagnosis.

use super::alert::{Alert, AlertSeverity, Runbook};

pub(super) fn alerts() -> Vec<Alert> {
    vec![kv_events_missing(), peer_exchange_down(), gpu_errors()]
}

fn kv_events_missing() -> Alert {
    Alert {
        name: "TokenweirKvEventsMissing",
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
        runbook: Runbook::Own {
            meaning: "KV events of a backend cannot be used: more prompts are computed again.",
            confirm: "`kv_events` in `/status`; `tokenweir doctor`.",
            action: "`off`: start the engine with `--kv-events-config` and an `endpoint` such as \
                     `tcp://*:5557`. `gap`: add a `replay_endpoint`. To do without events, set \
                     `kv_events: {enabled: false}`.",
        },
    }
}

fn peer_exchange_down() -> Alert {
    Alert {
        name: "TokenweirPeerExchangeDown",
        severity: AlertSeverity::Ticket,
        expr: "tokenweir_peer_exchange_connected == 0".into(),
        holds_for: "5m",
        stays_for: None,
        summary: "{{ $labels.instance }} has no connection to the message bus of the gateways",
        description: "The gateway has not been connected to the server of `peer_exchange.url` for 5 \
                      minutes. It estimates caches and queues from its own requests and from \
                      metrics.",
        runbook: Runbook::Own {
            meaning: "A gateway has lost the message bus: it does not know the prompts of the \
                      others.",
            confirm: "`peer_exchange.error` in `/status`; `redis-cli -u URL ping`.",
            action: "Restart the server of the message bus, or open the network path to it. After \
                     a change of the password, restart the gateway.",
        },
    }
}

fn gpu_errors() -> Alert {
    Alert {
        name: "TokenweirGpuErrors",
        severity: AlertSeverity::Page,
        // Applications cause the XID codes 13, 31, 43 and 45, so these are left out. The metric keeps the
        // last code, so only a change of the code shows a new error.
        expr: "max by (backend, exporter, gpu) (\n  \
               increase(tokenweir_gpu_memory_errors_total{type=\"uncorrected\"}[15m])\n) > 0\n\
               or max by (backend, exporter, gpu) (\n  \
               changes(tokenweir_gpu_last_xid[15m]) > 0\n  \
               and tokenweir_gpu_last_xid > 0 != 13 != 31 != 43 != 45\n)"
            .into(),
        holds_for: "0m",
        stays_for: Some("15m"),
        summary: "GPU {{ $labels.gpu }} of {{ $labels.backend }} reports errors",
        description: "GPU {{ $labels.gpu }} of {{ $labels.exporter }}, which serves \
                      {{ $labels.backend }}, had {{ $value }} memory errors that were not \
                      corrected, or changes of its XID code, in 15 minutes.",
        runbook: Runbook::Own {
            meaning: "A GPU has uncorrected memory errors, or an XID error that no application \
                      causes: the engine can stop or answer with wrong tokens.",
            confirm: "`nvidia-smi -q -d ECC,ROW_REMAPPER`; `NVRM: Xid` in the kernel log.",
            action: "Drain the backend and reset the GPU or its host. If the error returns, \
                     replace the GPU.",
        },
    }
}
