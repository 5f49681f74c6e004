//! The GPUs of a backend and the state of a GPU exporter, for `/status` and for metrics.

use crate::condition::{condition_of, memory_usage};
use crate::page::{GpuSignal, GpuValues};
use serde::Serialize;
use std::time::Duration;
use tokenweir_api::{BackendSummary, GpuSummary};
use tokenweir_gateway::status::StatusBlock;

/// A GPU that a backend owns, with its values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BackendGpu {
    /// The exporter that reports the GPU: host and port of its URL.
    pub exporter: String,
    /// The index of the GPU on its host, with the id of its MIG instance.
    pub gpu: String,
    /// The values of the GPU in the last successful scrape of its exporter.
    #[serde(flatten)]
    pub values: GpuValues,
    /// Time since the scrape that reported `values`.
    #[serde(skip)]
    pub scrape_age: Duration,
}

/// The GPUs of one backend, from the last successful scrapes of the GPU exporters.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BackendGpus(pub Vec<BackendGpu>);

impl StatusBlock for BackendGpus {
    const KEY: Option<&'static str> = Some("gpus");

    fn summarize(&self, summary: &mut BackendSummary) {
        if self.0.is_empty() {
            return;
        }
        let values: Vec<GpuValues> = self.0.iter().map(|gpu| gpu.values).collect();
        let condition = condition_of(&values);
        let oldest = self.0.iter().map(|gpu| gpu.scrape_age).max();
        summary.gpus = Some(GpuSummary {
            count: values.len(),
            utilization: condition.utilization,
            memory_usage: memory_usage(&values),
            max_temperature_celsius: condition.max_temperature_celsius,
            is_throttled: condition.is_throttled,
            scrape_age_seconds: oldest.unwrap_or_default().as_secs_f64(),
        });
    }
}

/// The GPU exporters. Empty: none is configured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GpuExporters(pub Vec<GpuExporterStatus>);

impl StatusBlock for GpuExporters {
    const KEY: Option<&'static str> = Some("gpu_exporters");
}

/// The GPUs of all exporters, by the backend that owns them.
#[derive(Debug, Clone, Default)]
pub struct GpuAssignment {
    /// The GPUs of each backend, in the order of the backends.
    pub backends: Vec<Vec<BackendGpu>>,
    /// The state of each exporter.
    pub exporters: Vec<GpuExporterStatus>,
}

/// Maximum age of GPU values that verdicts and the causes of slow requests use. Displays show older
/// values with their age.
const MAX_AGE: Duration = Duration::from_secs(30);

/// The state of one DCGM exporter.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GpuExporterStatus {
    /// Host and port of the URL of the exporter.
    pub exporter: String,
    /// Age of the last successful scrape in seconds. `None`: no scrape has succeeded.
    pub scrape_age_seconds: Option<f64>,
    /// Why the last scrape failed. `None`: the last scrape succeeded, or no scrape has ended yet.
    pub scrape_error: Option<&'static str>,
    /// Number of GPUs and MIG instances of the exporter that a backend owns.
    pub assigned: usize,
    /// The indexes of the GPUs of the exporter that no backend owns.
    pub unassigned: Vec<String>,
    /// Whether GPUs are unassigned because several backends have the host of the exporter. Rules in
    /// the configuration (`gpu.exporters`) can assign such GPUs.
    pub is_ambiguous: bool,
    /// Whether the metrics page of the exporter has more GPUs than the gateway reads.
    pub is_truncated: bool,
    /// The groups of GPU values that the exporter does not report for any GPU. Each group names the
    /// DCGM fields that the exporter must export, and the effect of their lack on the gateway.
    pub missing: Vec<&'static GpuSignal>,
}

impl GpuAssignment {
    /// Returns the values of the GPUs of each backend that are at most 30 s old, in the order of `backends`.
    pub fn fresh_values(&self) -> impl Iterator<Item = Vec<GpuValues>> {
        self.backends.iter().map(|gpus| {
            let fresh = gpus.iter().filter(|gpu| gpu.scrape_age <= MAX_AGE);
            fresh.map(|gpu| gpu.values).collect()
        })
    }
}
