//! Runs the scrapes of all DCGM exporters, and assigns the GPUs to the backends of the pool.

use super::exporter_scraper::{LatestScrape, ScrapedExporter};
use super::gpu_status::{BackendGpu, GpuExporterStatus, MissingGpuSignal};
use super::settings::{GpuExporter, GpuScrapeSettings};
use crate::backend::Backend;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_core::engine_metrics::ScrapeError;
use tokenweir_core::gpu::{
    BackendPlace, GpuCondition, GpuOwners, GpuReading, GpuSignal, GpuSourcePlace, GpuValues,
};
use tokenweir_net::client::HttpClient;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};

/// Runs the scrapes of all DCGM exporters.
#[derive(Debug, Default)]
pub struct GpuMonitor {
    exporters: Mutex<Vec<MonitoredExporter>>,
}

/// An exporter, and the task that scrapes it. The task ends when this value is dropped.
#[derive(Debug)]
struct MonitoredExporter {
    exporter: Arc<ScrapedExporter>,
    _task: SupervisedTask,
}

/// Maximum age of a page for verdicts and slow causes. Displays show older pages with their age.
const MAX_PAGE_AGE: Duration = Duration::from_secs(30);

impl GpuMonitor {
    /// Starts the scrapes with these settings, in place of the previous ones. An exporter that was
    /// scraped before keeps its last page. Must be called inside a Tokio runtime.
    pub fn configure(&self, settings: &GpuScrapeSettings, client: &HttpClient) {
        let mut exporters = self.lock();
        let previous_scrape = |exporter: &GpuExporter| {
            let is_same = |other: &&MonitoredExporter| other.exporter.settings.url == exporter.url;
            exporters.iter().find(is_same).map(|other| other.exporter.latest()).unwrap_or_default()
        };
        let monitored = settings.exporters.iter().map(|exporter| {
            let latest = previous_scrape(exporter);
            monitor(ScrapedExporter::new(exporter.clone(), latest), settings, client)
        });
        let monitored: Vec<MonitoredExporter> = monitored.collect();
        *exporters = monitored;
    }

    /// The GPUs of each backend, in the order of `backends`, and the state of each exporter.
    pub fn status(
        &self,
        backends: &[BackendPlace<'_>],
        now: Instant,
    ) -> (Vec<Vec<BackendGpu>>, Vec<GpuExporterStatus>) {
        let mut gpus = vec![Vec::new(); backends.len()];
        let mut statuses = Vec::new();
        for (exporter, latest) in self.latest_scrapes() {
            let mut status = exporter_status(&exporter, &latest, now);
            let readings = latest.page.iter().flat_map(|(_, page)| &page.gpus);
            for reading in readings {
                let owners = exporter.place().owners(reading, backends);
                status.count(reading, &owners);
                if let GpuOwners::Backends(owners) = owners {
                    for owner in owners {
                        gpus[owner].push(BackendGpu {
                            exporter: exporter.name.to_string(),
                            gpu: reading.index.to_string(),
                            values: reading.values,
                        });
                    }
                }
            }
            statuses.push(status);
        }
        (gpus, statuses)
    }

    /// The condition of the GPUs of each backend at `now`, in the order of `backends`. `None`: no
    /// fresh page has a GPU of the backend.
    pub fn conditions(&self, backends: &[Arc<Backend>], now: Instant) -> Vec<Option<GpuCondition>> {
        let hosts: Vec<Arc<str>> = backends.iter().map(|backend| backend_host(backend)).collect();
        let places: Vec<BackendPlace<'_>> = backends
            .iter()
            .zip(&hosts)
            .map(|(backend, host)| BackendPlace { id: backend.identity.id.as_str(), host })
            .collect();
        let mut values: Vec<Vec<GpuValues>> = vec![Vec::new(); backends.len()];
        for (exporter, latest) in self.latest_scrapes() {
            let is_fresh = |at: Instant| now.saturating_duration_since(at) <= MAX_PAGE_AGE;
            let Some((_, page)) = latest.page.filter(|(at, _)| is_fresh(*at)) else { continue };
            for reading in &page.gpus {
                if let GpuOwners::Backends(owners) = exporter.place().owners(reading, &places) {
                    for owner in owners {
                        values[owner].push(reading.values);
                    }
                }
            }
        }
        let condition =
            |gpus: &Vec<GpuValues>| (!gpus.is_empty()).then(|| GpuCondition::of(gpus.iter()));
        values.iter().map(condition).collect()
    }

    fn latest_scrapes(&self) -> Vec<(Arc<ScrapedExporter>, LatestScrape)> {
        let exporters = self.lock();
        exporters.iter().map(|it| (it.exporter.clone(), it.exporter.latest())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<MonitoredExporter>> {
        self.exporters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the task that scrapes an exporter.
fn monitor(
    exporter: ScrapedExporter,
    settings: &GpuScrapeSettings,
    client: &HttpClient,
) -> MonitoredExporter {
    let exporter = Arc::new(exporter);
    let (scraped, settings, client) = (exporter.clone(), settings.clone(), client.clone());
    let run = move || {
        let (scraped, settings, client) = (scraped.clone(), settings.clone(), client.clone());
        async move { scraped.run(client, &settings).await }
    };
    MonitoredExporter { exporter, _task: supervise::spawn(BackgroundTask::GpuScrape, run) }
}

/// The host of the URL of a backend.
fn backend_host(backend: &Backend) -> Arc<str> {
    backend.identity.address.host_and_port().0
}

/// The state of an exporter without its GPUs.
fn exporter_status(
    exporter: &ScrapedExporter,
    latest: &LatestScrape,
    now: Instant,
) -> GpuExporterStatus {
    let missing = |signal: &GpuSignal| MissingGpuSignal {
        signal: signal.name,
        fields: signal.fields,
        impact: signal.missing_impact,
    };
    let page = latest.page.as_ref();
    let age = page.map(|(at, _)| now.saturating_duration_since(*at).as_secs_f64());
    GpuExporterStatus {
        exporter: exporter.name.to_string(),
        scrape_age_seconds: age,
        scrape_error: latest.error.map(ScrapeError::as_str),
        is_truncated: page.is_some_and(|(_, page)| page.is_truncated),
        missing: page.iter().flat_map(|(_, page)| page.missing_signals().map(missing)).collect(),
        ..GpuExporterStatus::default()
    }
}

// === impl ScrapedExporter, GpuExporterStatus ===

impl ScrapedExporter {
    fn place(&self) -> GpuSourcePlace<'_> {
        GpuSourcePlace { host: &self.host, rules: &self.settings.rules }
    }
}

impl GpuExporterStatus {
    /// Counts a GPU as assigned or as unassigned, by its owners.
    fn count(&mut self, gpu: &GpuReading, owners: &GpuOwners) {
        match owners {
            GpuOwners::Backends(_) => self.assigned += 1,
            GpuOwners::None => self.unassigned.push(gpu.index.to_string()),
            GpuOwners::Ambiguous => {
                self.is_ambiguous = true;
                self.unassigned.push(gpu.index.to_string());
            }
        }
    }
}
