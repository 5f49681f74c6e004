//! How the gateway scrapes DCGM exporters, NVIDIA's exporters of GPU metrics.

use crate::page::GpuRule;
use std::time::Duration;
use tokenweir_engine::address::MetricsUrl;
use tokenweir_protocol::{settings, settings_entry};

settings! {
    /// GPUs of the backends, from DCGM exporters, for metrics, verdicts and slow causes. Routing does
    /// not use them.
    #[derive(Eq)]
    pub struct GpuSettings {
        /// The exporters, at most 100.
        pub exporters: Vec<GpuExporter>,
        /// Time between two scrapes of an exporter.
        #[serde(skip)]
        pub interval: Duration,
        /// Timeout of one scrape.
        #[serde(skip)]
        pub timeout: Duration,
        /// Maximum size of a page, in bytes. A longer page is a failure.
        #[serde(skip)]
        pub max_page: usize,
    }
}

settings_entry! {
    /// A DCGM exporter.
    #[derive(Eq)]
    pub struct GpuExporter {
        /// URL of the page of the exporter. The path is `/metrics` by default. Host and port are a
        /// label value.
        pub url: MetricsUrl,
        /// The backends to which the GPUs of the exporter belong. Empty: the backend whose name or host
        /// is the pod of the GPU, or else the only one on the host of the exporter.
        #[serde(default, rename = "backends")]
        pub rules: Vec<GpuRule>,
    }
}

impl Default for GpuSettings {
    fn default() -> Self {
        Self {
            exporters: Vec::new(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            max_page: 1 << 20,
        }
    }
}
