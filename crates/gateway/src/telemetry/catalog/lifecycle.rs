//! Metrics of the lifecycle of the gateway: configuration reloads, shutdown, and the delay of its
//! tasks.

use crate::metric::prelude::*;

/// Bucket bounds of the delay with which a timer fires, in seconds. The timers of the runtime have a
/// resolution of 1 ms, so no bound is below 2 ms.
const SCHEDULING_DELAY_BOUNDS: &[f64] = &[
    0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

pub(super) const ROWS: &[MetricDescriptor] = &[
    value(
        "tokenweir_config_last_reload_successful",
        "1 if the last load of the configuration succeeded.",
        |status| Some(f64::from(status.config_reloads.last_successful)),
    ),
    value(
        "tokenweir_config_last_reload_success_timestamp_seconds",
        "Unix time at which the configuration in use was loaded.",
        |status| Some(status.config_reloads.last_success_seconds),
    ),
    counts(
        "tokenweir_config_reloads_total",
        "Reloads of the configuration, by result.",
        &[counted("result", |status| {
            let reloads = &status.config_reloads;
            vec![("ok", reloads.ok), ("failed", reloads.failed)]
        })],
    ),
    value(
        "tokenweir_draining",
        "1 from the shutdown signal on.",
        |status| Some(f64::from(status.draining)),
    ),
    histogram(
        SCHEDULING_DELAY_METRIC,
        "Delay of a timer of the runtime. Above 5 ms: worker threads are blocked, or the process lacks CPU.",
        SCHEDULING_DELAY_BOUNDS,
        &[],
        Recorded,
    ),
];
