//! GPUs of backends: the gateway scrapes the pages of DCGM exporters (NVIDIA's exporters of GPU metrics) and assigns
//! their GPUs to backends.
//!
//! A failed scrape keeps the last page, whose age is visible in `/status` and in the metrics. GPU data appears in
//! displays, in verdicts and in the causes of slow requests. It never affects routing.

mod settings;

mod check;
mod condition;
mod exporter_scraper;
mod facet;
mod gpu_status;
mod option;
pub mod page;
pub mod rows;
mod section;

mod gpu_monitor;

pub use check::check;
pub use facet::{BackendCost, GpuFacet};
pub use gpu_monitor::GpuMonitor;
pub use gpu_monitor::TASK;
pub use gpu_status::{BackendGpu, BackendGpus, GpuAssignment, GpuExporterStatus, GpuExporters};
pub use option::Cost;
pub use page::{GpuBackend, GpuIndex, GpuPage, GpuRule};
pub use section::{CostConfig, check_price};
pub use settings::{GpuExporter, GpuSettings};
