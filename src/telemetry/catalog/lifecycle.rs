//! Metrics of the lifecycle of the gateway: configuration reloads, shutdown and panics.

use super::super::metric::{CONFIG_RELOAD_RESULTS, MetricDescriptor, MetricLabel, MetricSource};
use tokenweir_core::metric_kind::MetricKind;
use tokenweir_net::supervise::BackgroundTask;

pub(super) const ROWS: &[MetricDescriptor] = &[
    MetricDescriptor {
        name: "tokenweir_config_last_reload_successful",
        help: "1 if the last load of the configuration succeeded.",
        kind: MetricKind::Gauge,
        labels: &[],
        read: MetricSource::Status(|vitals, emit| {
            emit(&[], f64::from(u8::from(vitals.reloads.last_successful)));
        }),
    },
    MetricDescriptor {
        name: "tokenweir_config_last_reload_success_timestamp_seconds",
        help: "Unix time at which the configuration in use was loaded.",
        kind: MetricKind::Gauge,
        labels: &[],
        read: MetricSource::Status(|vitals, emit| emit(&[], vitals.reloads.last_success_seconds)),
    },
    MetricDescriptor {
        name: "tokenweir_config_reloads_total",
        help: "Reloads of the configuration, by whether the new configuration could be used.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::ConfigReloadResult],
        read: MetricSource::Status(|vitals, emit| {
            let counts = [vitals.reloads.ok, vitals.reloads.failed];
            for (result, count) in CONFIG_RELOAD_RESULTS.iter().zip(counts) {
                emit(&[result], count as f64);
            }
        }),
    },
    MetricDescriptor {
        name: "tokenweir_draining",
        help: "1 from the shutdown signal on: open requests complete, and new ones should go elsewhere.",
        kind: MetricKind::Gauge,
        labels: &[],
        read: MetricSource::Status(|vitals, emit| emit(&[], f64::from(u8::from(vitals.draining)))),
    },
    MetricDescriptor {
        name: "tokenweir_task_panics_total",
        help: "Panics of background tasks. Each is a defect of the gateway; the log has the location.",
        kind: MetricKind::Counter,
        labels: &[MetricLabel::BackgroundTask],
        read: MetricSource::Status(|vitals, emit| {
            for task in BackgroundTask::ALL {
                emit(&[task.as_str()], vitals.panics.for_task(task) as f64);
            }
        }),
    },
];
