//! The dashboard row of the GPUs. Its panels are empty without `gpu.exporters` in the configuration.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::Panel;
use crate::dashboards::query::{engine_rate, gauge_by};

/// The labels of a GPU.
const GPU: &str = "backend, exporter, gpu";
const LEGEND: &str = "{{backend}} GPU {{gpu}}";

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "GPUs",
        panels: [
            utilization_panels(metrics),
            power_panels(metrics),
            vec![memory_errors(metrics), value_age(metrics)],
        ]
        .concat(),
    }
}

/// The panels of the use of computing time and memory.
fn utilization_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    let gauge = |name| gauge_by(metrics, GPU, name);
    vec![
        Panel::lines(
            "GPU utilisation",
            "percentunit",
            "Share of time in which each GPU computed. Low while requests wait: the CPU of the \
             engine limits, or the requests go elsewhere. Empty without `gpu.exporters` in the \
             configuration.",
        )
        .with_query(gauge("tokenweir_gpu_utilization_ratio"), LEGEND),
        Panel::lines(
            "GPU memory",
            "percentunit",
            "Used share of the memory of each GPU. It is constant after the start of an engine; \
             slow growth ends in an error for lack of memory.",
        )
        .with_query(
            format!(
                "{used}\n/ ({used} + {free})",
                used = gauge("tokenweir_gpu_memory_used_bytes"),
                free = gauge("tokenweir_gpu_memory_free_bytes"),
            ),
            LEGEND,
        ),
    ]
}

/// The panels of temperature, power draw and throttling.
fn power_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines("GPU temperature", "celsius", "Temperature of each GPU, or of its memory.")
            .with_query(
                gauge_by(
                    metrics,
                    "backend, exporter, gpu, sensor",
                    "tokenweir_gpu_temperature_celsius",
                ),
                "{{backend}} GPU {{gpu}} {{sensor}}",
            ),
        Panel::lines("GPU power", "watt", "Power draw of each GPU.")
            .with_query(gauge_by(metrics, GPU, "tokenweir_gpu_power_watts"), LEGEND),
        Panel::lines(
            "GPU throttling",
            "short",
            "1 while a GPU lowers its clock for a reason. The power limit is normal under full \
             load; the other reasons are faults of cooling or of the power supply. Empty unless \
             the exporter exports DCGM_FI_DEV_CLOCKS_EVENT_REASONS.",
        )
        .with_query(
            format!(
                "{} > 0",
                gauge_by(
                    metrics,
                    "backend, exporter, gpu, reason",
                    "tokenweir_gpu_throttle_active"
                )
            ),
            "{{backend}} GPU {{gpu}} {{reason}}",
        ),
    ]
}

/// The panel of the memory errors.
fn memory_errors(metrics: &MetricCatalogue) -> Panel {
    Panel::lines(
        "GPU memory errors",
        "short",
        "Memory errors of each GPU per second. Errors that were not corrected end requests. \
         Empty unless the exporter exports the ECC fields.",
    )
    .with_query(
        engine_rate(metrics, "backend, exporter, gpu, type", "tokenweir_gpu_memory_errors_total"),
        "{{backend}} GPU {{gpu}} {{type}}",
    )
}

/// The panel of the time since the last successful scrape of each GPU exporter.
fn value_age(metrics: &MetricCatalogue) -> Panel {
    Panel::lines(
        "Age of GPU values",
        "s",
        "Time since the last successful scrape of each GPU exporter.",
    )
    .with_gauge_by(metrics, "exporter", "tokenweir_gpu_exporter_scrape_age_seconds")
}
