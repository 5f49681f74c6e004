//! GPUs of backends: the gateway scrapes the pages of DCGM exporters (NVIDIA's exporters of GPU metrics)
//! and assigns their GPUs to backends.
//!
//! A failed scrape keeps the last page, whose age is visible in `/status` and in the metrics. GPUs
//! affect verdicts, the stated causes of slow requests and displays, and never the routing of a request.

mod settings;

mod exporter_scraper;
mod facet;
mod gpu_status;
pub mod rows;

mod gpu_monitor;

pub use facet::GpuFacet;
pub use gpu_monitor::GpuMonitor;
pub use gpu_status::{BackendGpu, BackendGpus, GpuAssignment, GpuExporterStatus, GpuExporters};
pub use settings::{GpuExporter, GpuSettings};
pub use tokenweir_engine::gpu::GpuBackend;
