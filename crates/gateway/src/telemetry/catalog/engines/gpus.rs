//! Metrics of the GPUs of backends, from DCGM exporters. A value that an exporter does not report
//! has no series. If an exporter fails, the series of its GPUs keep the last values.
//! `tokenweir_gpu_exporter_scrape_age_seconds` shows the age of these values.

use crate::telemetry::metric::{BackendEmitter, MetricDescriptor, MetricLabel, MetricSource};
use tokenweir_engine::gpu::{GpuValues, THROTTLE_CAUSES, ThrottleReason};

/// The label that names the exporter that reports a GPU.
const EXPORTER: MetricLabel = MetricLabel::variable(
    "exporter",
    |_| Vec::new(),
    || "host and port of an entry of `gpu.exporters`".to_owned(),
);
/// The label with the index of a GPU on its host.
const GPU: MetricLabel = MetricLabel::variable(
    "gpu",
    |_| Vec::new(),
    || "the index of a GPU on its host, with its MIG instance as in `0.2`".to_owned(),
);
/// The label that says which sensor measured a temperature.
const SENSOR: MetricLabel = MetricLabel::fixed("sensor", || vec!["gpu", "memory"]);
/// The label that says why a GPU lowers its clock at present.
const REASON: MetricLabel = MetricLabel::fixed("reason", || ThrottleReason::NAMES.to_vec());
/// The label that says why a GPU lowered its clock in the past. DCGM counts the throttled time of each of
/// these causes separately.
const CAUSE: MetricLabel = MetricLabel::fixed("cause", || THROTTLE_CAUSES.to_vec());
/// The label that says whether a memory error was corrected.
const ERROR_TYPE: MetricLabel = MetricLabel::fixed("type", || vec!["corrected", "uncorrected"]);
/// The label that says whether a GPU is assigned to a backend.
const ASSIGNMENT: MetricLabel = MetricLabel::fixed("state", || vec!["assigned", "unassigned"]);

pub(super) const ROWS: &[MetricDescriptor] = &[
    gauge(
        "tokenweir_gpu_utilization_ratio",
        "Share of time in which the GPU computed.",
        |gpu, emit| emit(&[], gpu.utilization),
    ),
    gauge("tokenweir_gpu_memory_used_bytes", "Used memory of the GPU.", |gpu, emit| {
        emit(&[], gpu.memory_used_bytes);
    }),
    gauge("tokenweir_gpu_memory_free_bytes", "Free memory of the GPU.", |gpu, emit| {
        emit(&[], gpu.memory_free_bytes);
    }),
    gauge("tokenweir_gpu_power_watts", "Power draw of the GPU.", |gpu, emit| {
        emit(&[], gpu.power_watts);
    }),
    gauge(
        "tokenweir_gpu_clock_hertz",
        "Clock of the streaming multiprocessors of the GPU.",
        |gpu, emit| emit(&[], gpu.clock_hertz),
    ),
    gauge(
        "tokenweir_gpu_last_xid",
        "Code of the last XID error of the GPU. 0: none since the start of the driver.",
        |gpu, emit| emit(&[], gpu.last_xid),
    ),
    MetricDescriptor::new(
        "tokenweir_gpu_temperature_celsius",
        "Temperature of the GPU or of its memory.",
        &[MetricLabel::BACKEND, EXPORTER, GPU, SENSOR],
        MetricSource::Gpu(|gpu, emit| {
            emit(&["gpu"], gpu.temperature_celsius);
            emit(&["memory"], gpu.memory_temperature_celsius);
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_gpu_throttle_active",
        "1 while the GPU lowers its clock, by reason. The reasons power_cap and sync_boost are normal under full load.",
        &[MetricLabel::BACKEND, EXPORTER, GPU, REASON],
        MetricSource::Gpu(|gpu, emit| {
            let Some(reasons) = gpu.throttle_reasons else { return };
            for reason in ThrottleReason::ALL {
                emit(&[reason.as_str()], Some(f64::from(reasons.has(reason))));
            }
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_gpu_throttled_seconds_total",
        "Time in which the GPU lowered its clock, by cause.",
        &[MetricLabel::BACKEND, EXPORTER, GPU, CAUSE],
        MetricSource::Gpu(|gpu, emit| {
            for (cause, seconds) in THROTTLE_CAUSES.iter().zip(gpu.throttled_seconds) {
                emit(&[cause], seconds);
            }
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_gpu_memory_errors_total",
        "Memory errors (ECC) of the GPU since the start of the driver.",
        &[MetricLabel::BACKEND, EXPORTER, GPU, ERROR_TYPE],
        MetricSource::Gpu(|gpu, emit| {
            emit(&["corrected"], gpu.corrected_errors);
            emit(&["uncorrected"], gpu.uncorrected_errors);
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_gpu_exporter_scrape_age_seconds",
        "Age of the last successful scrape of the GPU exporter. NaN: no scrape has succeeded.",
        &[EXPORTER],
        MetricSource::Status(|status, emit| {
            for exporter in &status.gpu_exporters {
                emit(&[&exporter.exporter], exporter.scrape_age_seconds.unwrap_or(f64::NAN));
            }
        }),
    ),
    MetricDescriptor::new(
        "tokenweir_gpu_exporter_gpus",
        "GPUs and MIG instances on the page of the GPU exporter, by whether a backend owns them.",
        &[EXPORTER, ASSIGNMENT],
        MetricSource::Status(|status, emit| {
            for exporter in &status.gpu_exporters {
                emit(&[&exporter.exporter, "assigned"], exporter.assigned as f64);
                emit(&[&exporter.exporter, "unassigned"], exporter.unassigned.len() as f64);
            }
        }),
    ),
];

/// Defines a gauge that has one series for each GPU.
const fn gauge(
    name: &'static str,
    help: &'static str,
    read: fn(&GpuValues, BackendEmitter<'_>),
) -> MetricDescriptor {
    let labels = &[MetricLabel::BACKEND, EXPORTER, GPU];
    MetricDescriptor::new(name, help, labels, MetricSource::Gpu(read))
}
