//! Metrics of the access log, of the CPU time of telemetry, and of the version of the gateway.

use crate::metric::prelude::*;
use crate::telemetry::access_log::AccessLogCounts;
use crate::telemetry::cpu_time::{TelemetryCpuTimes, TelemetryPart};

const VERSION: MetricLabel = variable(
    "version",
    |_| vec![env!("CARGO_PKG_VERSION").to_owned()],
    "the version of the gateway",
);

pub(super) const ROWS: &[MetricDescriptor] = &[
    counts(
        "tokenweir_access_log_lines_total",
        "Access log lines, by result. Dropped: the log reader was too slow or a write failed.",
        &[counted("result", |status| {
            let counts: AccessLogCounts = status.blocks.get_or_default();
            vec![
                ("written", counts.written),
                ("rate_limited", counts.rate_limited),
                ("dropped", counts.dropped),
            ]
        })],
    ),
    row(
        "tokenweir_telemetry_cpu_seconds_total",
        "CPU time of telemetry by kind of work, without the observation of responses and the connections to collectors.",
        &[fixed("part", TelemetryPart::NAMES)],
        Status(|_, emit| {
            let times = TelemetryCpuTimes::snapshot();
            for part in TelemetryPart::ALL {
                emit(&[part.as_str()], times.of(part).as_secs_f64());
            }
        }),
    ),
    row(
        "tokenweir_build_info",
        "Always 1. The label is the gateway's version.",
        &[VERSION],
        Status(|_, emit| emit(&[env!("CARGO_PKG_VERSION")], 1.0)),
    ),
];
