//! Metrics of the GPUs of backends: their number and price from the configuration, and values of DCGM exporters. A value that an exporter does not report
//! has no series. If an exporter fails, the series of its GPUs keep the last values.
//! `tokenweir_gpu_exporter_scrape_age_seconds` shows the age of these values.

use super::facet::BackendCost;
use super::gpu_status::{BackendGpu, BackendGpus, GpuExporterStatus, GpuExporters};
use crate::page::{GpuValues, THROTTLE_CAUSES, ThrottleReason};
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusSnapshot;

/// The label that names the exporter that reports a GPU.
const EXPORTER: MetricLabel = variable(
    "exporter",
    |_| Vec::new(),
    "host and port of an entry of `gpu.exporters`",
);
/// The label with the index of a GPU on its host.
const GPU: MetricLabel = variable(
    "gpu",
    |_| Vec::new(),
    "the index of a GPU on its host, with its MIG instance as in `0.2`",
);
/// The label that says which sensor measured a temperature.
const SENSOR: MetricLabel = fixed("sensor", &["gpu", "memory"]);
/// The label that says why a GPU lowers its clock at present.
const REASON: MetricLabel = fixed("reason", ThrottleReason::NAMES);
/// The label that says why a GPU lowered its clock in the past. DCGM counts the throttled time of each of
/// these causes separately.
const CAUSE: MetricLabel = fixed("cause", &THROTTLE_CAUSES);
/// The label that says whether a memory error was corrected.
const ERROR_TYPE: MetricLabel = fixed("type", &["corrected", "uncorrected"]);
/// The label that says whether a GPU is assigned to a backend.
const ASSIGNMENT: MetricLabel = fixed("state", &["assigned", "unassigned"]);

/// The row of a metric with one value for each GPU: a field of [`GpuValues`].
macro_rules! gpu_gauge {
    ($name:literal, $help:literal, $field:ident) => {
        row(
            $name,
            $help,
            &[BACKEND, EXPORTER, GPU],
            Status(|status, emit| {
                for_each_gpu(status, emit, |gpu, emit| emit(&[], gpu.$field));
            }),
        )
    };
}

/// The metrics of the GPUs of backends.
pub const ROWS: &[MetricDescriptor] = &[
    of_backend(
        "tokenweir_backend_gpus",
        "GPUs of the backend, from the configuration.",
        |backend| backend.blocks.get::<BackendCost>()?.gpus,
    ),
    of_backend(
        "tokenweir_backend_price_per_hour",
        "Price of all GPUs of the backend for one hour.",
        |backend| backend.blocks.get::<BackendCost>()?.hour_price,
    ),
    gpu_gauge!(
        "tokenweir_gpu_utilization_ratio",
        "Share of time in which the GPU computed.",
        utilization
    ),
    gpu_gauge!(
        "tokenweir_gpu_memory_used_bytes",
        "Used memory of the GPU.",
        memory_used_bytes
    ),
    gpu_gauge!(
        "tokenweir_gpu_memory_free_bytes",
        "Free memory of the GPU.",
        memory_free_bytes
    ),
    gpu_gauge!(
        "tokenweir_gpu_power_watts",
        "Power draw of the GPU.",
        power_watts
    ),
    gpu_gauge!(
        "tokenweir_gpu_clock_hertz",
        "Clock of the streaming multiprocessors of the GPU.",
        clock_hertz
    ),
    gpu_gauge!(
        "tokenweir_gpu_last_xid",
        "Code of the last XID error of the GPU. 0: none since the start of the driver.",
        last_xid
    ),
    row(
        "tokenweir_gpu_temperature_celsius",
        "Temperature of the GPU or of its memory.",
        &[BACKEND, EXPORTER, GPU, SENSOR],
        Status(|status, emit| {
            for_each_gpu(status, emit, |gpu, emit| {
                emit(&["gpu"], gpu.temperature_celsius);
                emit(&["memory"], gpu.memory_temperature_celsius);
            });
        }),
    ),
    row(
        "tokenweir_gpu_throttle_active",
        "1 while the GPU lowers its clock, by reason. The reasons power_cap and sync_boost are normal under full load.",
        &[BACKEND, EXPORTER, GPU, REASON],
        Status(|status, emit| {
            for_each_gpu(status, emit, |gpu, emit| {
                let Some(reasons) = gpu.throttle_reasons else {
                    return;
                };
                for reason in ThrottleReason::ALL {
                    emit(&[reason.as_str()], Some(f64::from(reasons.has(reason))));
                }
            });
        }),
    ),
    row(
        "tokenweir_gpu_throttled_seconds_total",
        "Time in which the GPU lowered its clock, by cause.",
        &[BACKEND, EXPORTER, GPU, CAUSE],
        Status(|status, emit| {
            for_each_gpu(status, emit, |gpu, emit| {
                for (cause, seconds) in THROTTLE_CAUSES.iter().zip(gpu.throttled_seconds) {
                    emit(&[cause], seconds);
                }
            });
        }),
    ),
    row(
        "tokenweir_gpu_memory_errors_total",
        "Memory errors (ECC) of the GPU since the start of the driver.",
        &[BACKEND, EXPORTER, GPU, ERROR_TYPE],
        Status(|status, emit| {
            for_each_gpu(status, emit, |gpu, emit| {
                emit(&["corrected"], gpu.corrected_errors);
                emit(&["uncorrected"], gpu.uncorrected_errors);
            });
        }),
    ),
    row(
        "tokenweir_gpu_exporter_scrape_age_seconds",
        "Age of the last successful scrape of the GPU exporter. NaN: no scrape has succeeded.",
        &[EXPORTER],
        Status(|status, emit| {
            for exporter in exporters(status) {
                emit(
                    &[&exporter.exporter],
                    exporter.scrape_age_seconds.unwrap_or(f64::NAN),
                );
            }
        }),
    ),
    row(
        "tokenweir_gpu_exporter_gpus",
        "GPUs and MIG instances on the page of the GPU exporter, by whether a backend owns them.",
        &[EXPORTER, ASSIGNMENT],
        Status(|status, emit| {
            for exporter in exporters(status) {
                emit(&[&exporter.exporter, "assigned"], exporter.assigned as f64);
                emit(
                    &[&exporter.exporter, "unassigned"],
                    exporter.unassigned.len() as f64,
                );
            }
        }),
    ),
];

fn exporters(status: &StatusSnapshot) -> &[GpuExporterStatus] {
    match status.blocks.get::<GpuExporters>() {
        Some(GpuExporters(exporters)) => exporters,
        None => &[],
    }
}

/// Calls `read` for each GPU of the registered backends. The function that `read` receives emits values with
/// the labels of the GPU.
fn for_each_gpu(
    status: &StatusSnapshot,
    emit: MetricEmitter<'_>,
    read: fn(&GpuValues, BackendEmitter<'_>),
) {
    for backend in status.registered_backends() {
        let Some(BackendGpus(gpus)) = backend.blocks.get::<BackendGpus>() else {
            continue;
        };
        for BackendGpu {
            exporter,
            gpu,
            values,
            ..
        } in gpus
        {
            let first = [&*backend.backend, exporter, gpu];
            read(values, &mut with_first_labels(&first, emit));
        }
    }
}
