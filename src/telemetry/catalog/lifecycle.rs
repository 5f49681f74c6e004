//! The life of the gateway: its configuration, its end, and panics on the way.

use super::super::metric::{Kind, Label, RELOAD_RESULTS, Read, Row};
use tokenweir_net::supervise::Task;

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "tokenweir_config_last_reload_successful",
        help: "1 if the configuration could be used when it was last read.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| {
            emit(&[], f64::from(u8::from(vitals.reloads.last_successful)));
        }),
    },
    Row {
        name: "tokenweir_config_last_reload_success_timestamp_seconds",
        help: "When the configuration in force was read, in seconds since 1970.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], vitals.reloads.last_success_seconds)),
    },
    Row {
        name: "tokenweir_config_reloads_total",
        help: "Times that the configuration was read again, by whether it could be used.",
        kind: Kind::Counter,
        labels: &[Label::Reload],
        read: Read::Vitals(|vitals, emit| {
            let counts = [vitals.reloads.ok, vitals.reloads.failed];
            for (result, count) in RELOAD_RESULTS.iter().zip(counts) {
                emit(&[result], count as f64);
            }
        }),
    },
    Row {
        name: "tokenweir_draining",
        help: "1 from the signal to end on: open requests end, and none should come.",
        kind: Kind::Gauge,
        labels: &[],
        read: Read::Vitals(|vitals, emit| emit(&[], f64::from(u8::from(vitals.draining)))),
    },
    Row {
        name: "tokenweir_task_panics_total",
        help: "Panics of background tasks. Each is a defect of the gateway; the log says where.",
        kind: Kind::Counter,
        labels: &[Label::Task],
        read: Read::Vitals(|vitals, emit| {
            for task in Task::ALL {
                emit(&[task.as_str()], vitals.panics.of(task) as f64);
            }
        }),
    },
];
