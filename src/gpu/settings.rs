//! The settings of the scrapes of DCGM exporters.

use std::time::Duration;
use tokenweir_engine::address::MetricsUrl;
use tokenweir_engine::gpu::GpuRule;

/// The settings of the scrapes of DCGM exporters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuScrapeSettings {
    /// The exporters, usually one for each host.
    pub exporters: Vec<GpuExporter>,
    /// Time between two scrapes of an exporter.
    pub interval: Duration,
    /// Timeout of one scrape.
    pub timeout: Duration,
    /// Maximum size of a page, in bytes.
    pub max_page: usize,
}

/// A DCGM exporter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuExporter {
    /// The URL of its page.
    pub url: MetricsUrl,
    /// The rules that assign its GPUs to backends. Empty: by pod or by host.
    pub rules: Vec<GpuRule>,
}
