//! Alerts about the GPUs of backends. They need `gpu.exporters` in the configuration.

use super::alert::{Alert, AlertSeverity};

const AREA: &str = "gpus";

pub(super) fn alerts() -> Vec<Alert> {
    vec![errors(), throttled()]
}

fn errors() -> Alert {
    Alert {
        name: "TokenweirGpuErrors",
        when: "a GPU reports memory errors that were not corrected, or a new XID error that no \
               application causes",
        area: AREA,
        severity: AlertSeverity::Page,
        // Applications cause the XID codes 13, 31, 43 and 45. The code stays after the error, so
        // only its change is an event.
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
        meaning: "The GPU or its driver is faulty. The engine can stop, hang, or answer with wrong \
                  tokens.",
        confirm: "`tokenweir_gpu_last_xid` and `tokenweir_gpu_memory_errors_total` of the GPU. On \
                  the host: `nvidia-smi -q -d ECC,ROW_REMAPPER` and lines with `NVRM: Xid` in the \
                  kernel log. NVIDIA's list of XID errors has the meaning of each code.",
        action: "Drain the backend (`tokenweir drain BACKEND`). Reset the GPU or restart the host. \
                 If the errors return, replace the GPU. The code of the last XID error stays until \
                 the driver is loaded again; the alert ends by itself.",
        silences: Vec::new(),
    }
}

fn throttled() -> Alert {
    Alert {
        name: "TokenweirGpuThrottled",
        when: "a GPU has lowered its clock because of its temperature or of its power supply for \
               10 minutes",
        area: AREA,
        severity: AlertSeverity::Ticket,
        // The power limit and sync boost are normal under full load. Values of an exporter that
        // does not respond say nothing about now.
        expr: "max by (backend, exporter, gpu, reason) (\n  \
               tokenweir_gpu_throttle_active{reason!~\"power_cap|sync_boost\"}\n) > 0\n\
               and on (exporter) max by (exporter) (tokenweir_gpu_exporter_scrape_age_seconds) < 60"
            .into(),
        holds_for: "10m",
        stays_for: Some("5m"),
        summary: "GPU {{ $labels.gpu }} of {{ $labels.backend }} lowers its clock: \
                  {{ $labels.reason }}",
        description: "GPU {{ $labels.gpu }} of {{ $labels.exporter }}, which serves \
                      {{ $labels.backend }}, lowers its clock because of {{ $labels.reason }}.",
        meaning: "The backend is slower than its GPU allows. Hardware slowdown halves the clock or \
                  more. In a tensor-parallel backend the slowest GPU determines the speed.",
        confirm: "Dashboard, row GPUs: temperature, power and throttling. On the host: \
                  `nvidia-smi -q -d PERFORMANCE,TEMPERATURE`. The slow cause `gpu_throttled` in \
                  `tokenweir_slow_requests_total` counts the requests that were slow at such a time.",
        action: "Check fans, air flow and the temperature of the room, and for `hw_power_brake` the \
                 power supply of the host. Until then, lower the `weight` of the backend.",
        silences: Vec::new(),
    }
}
