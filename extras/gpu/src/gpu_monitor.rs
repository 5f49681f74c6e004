//! Runs the scrapes of all DCGM exporters, and assigns the GPUs to the backends of the pool.

use super::exporter_scraper::{LatestScrape, ScrapedExporter};
use super::facet::GpuFacet;
use super::gpu_status::{BackendGpu, BackendGpus, GpuAssignment, GpuExporterStatus, GpuExporters};
use super::settings::{GpuExporter, GpuSettings};
use crate::condition::{condition_of, max};
use crate::page::{GpuBackend, GpuOwners, GpuSourcePlace};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokenweir_diagnose::DiagnosisSample;
use tokenweir_engine::address::{BackendAddress, BackendId};
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_gateway::backend::Backend;
use tokenweir_gateway::status::StatusSnapshot;
use tokenweir_net::client::HttpClient;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_option::DiagnosisHooks;
use tokenweir_protocol::mutex::lock;

/// Scrapes one GPU exporter.
pub const TASK: BackgroundTask = BackgroundTask::new("gpu_scrape");

/// Runs the scrapes of all DCGM exporters, and assigns their GPUs to backends.
#[derive(Debug, Default)]
pub struct GpuMonitor {
    configured: Mutex<GpuSettings>,
    /// Each exporter with the task that scrapes it. The task ends when its `SupervisedTask` is dropped.
    exporters: Mutex<Vec<(Arc<ScrapedExporter>, SupervisedTask)>>,
}

impl GpuMonitor {
    /// Starts the scrapes with these settings, in place of the previous ones. An exporter that was
    /// scraped before keeps its last page. Must be called inside a Tokio runtime.
    pub fn configure(&self, settings: &GpuSettings, client: &HttpClient) {
        let mut exporters = lock(&self.exporters);
        let previous_scrape = |exporter: &GpuExporter| {
            let mut others = exporters.iter().map(|(other, _)| other);
            let same = others.find(|other| other.settings.url == exporter.url);
            same.map(|same| same.latest()).unwrap_or_default()
        };
        let start = |exporter: &GpuExporter| {
            let latest = previous_scrape(exporter);
            let exporter = Arc::new(ScrapedExporter::new(exporter.clone(), latest));
            let scraped = exporter.clone();
            let settings = settings.clone();
            let client = client.clone();
            let task = supervise::spawn(TASK, move || {
                scraped.clone().run(client.clone(), settings.clone())
            });
            (exporter, task)
        };
        let started = settings.exporters.iter().map(start).collect();
        *exporters = started;
        lock(&self.configured).clone_from(settings);
    }

    /// Whether the scrapes run with these settings.
    pub(crate) fn is_configured_as(&self, settings: &GpuSettings) -> bool {
        *lock(&self.configured) == *settings
    }

    /// Assigns the GPUs of all exporters to the backends that own them. The name, the host and the
    /// pod of a backend show which GPUs it owns.
    pub fn assign<'a>(
        &self,
        backends: impl IntoIterator<Item = GpuBackend<'a>>,
        now: Instant,
    ) -> GpuAssignment {
        let backends: Vec<GpuBackend<'_>> = backends.into_iter().collect();
        let mut assignment = GpuAssignment {
            backends: vec![Vec::new(); backends.len()],
            exporters: Vec::new(),
        };
        for (exporter, latest) in self.latest_scrapes() {
            let mut status = exporter_status(&exporter, &latest, now);
            let place = GpuSourcePlace {
                host: &exporter.host,
                rules: &exporter.settings.rules,
            };
            let page = latest
                .page
                .iter()
                .flat_map(|(at, page)| page.gpus.iter().map(|it| (*at, it)));
            for (scraped_at, reading) in page {
                let owners = match place.owners(reading, &backends) {
                    GpuOwners::Backends(owners) => owners,
                    owners => {
                        status.is_ambiguous |= owners == GpuOwners::Ambiguous;
                        status.unassigned.push(reading.index.to_string());
                        continue;
                    }
                };
                status.assigned += 1;
                for owner in owners {
                    assignment.backends[owner].push(BackendGpu {
                        exporter: exporter.name.to_string(),
                        gpu: reading.index.to_string(),
                        values: reading.values,
                        scrape_age: now.saturating_duration_since(scraped_at),
                    });
                }
            }
            assignment.exporters.push(status);
        }
        assignment
    }

    /// Adds the GPUs of each backend, and the state of the exporters, to a status.
    pub(crate) fn add_gpus(&self, status: &mut StatusSnapshot, now: Instant) {
        let host = |url: &str| {
            BackendAddress::parse(url)
                .map(|url| url.host_and_port().0)
                .ok()
        };
        let backends = status.backends.iter().map(|backend| GpuBackend {
            id: &backend.backend,
            host: host(&backend.facts.url).unwrap_or_default(),
            pod: backend.pod.as_deref().map(Into::into),
        });
        let GpuAssignment {
            backends,
            exporters,
        } = self.assign(backends, now);
        for (backend, gpus) in status.backends.iter_mut().zip(backends) {
            backend.blocks.add(BackendGpus(gpus));
        }
        status.blocks.add(GpuExporters(exporters));
    }

    fn latest_scrapes(&self) -> Vec<(Arc<ScrapedExporter>, LatestScrape)> {
        let exporters = lock(&self.exporters);
        exporters
            .iter()
            .map(|(it, _)| (it.clone(), it.latest()))
            .collect()
    }
}

impl DiagnosisHooks for GpuMonitor {
    /// Also tells each backend whether its GPUs lower their clocks because of a fault.
    fn complete_samples(
        &self,
        backends: &[Arc<Backend>],
        samples: &mut [(BackendId, DiagnosisSample)],
        now: Instant,
    ) {
        let owners = backends.iter().map(|backend| {
            let identity = &backend.identity;
            GpuBackend {
                id: identity.id.as_str(),
                host: identity.address.host_and_port().0,
                pod: identity.settings().pod.clone(),
            }
        });
        let assignment = self.assign(owners, now);
        let values = assignment.fresh_values();
        for ((backend, (_, sample)), gpus) in backends.iter().zip(samples).zip(values) {
            let condition = condition_of(&gpus);
            if let Some(facet) = backend.facets.get::<GpuFacet>() {
                facet.is_throttled.set(condition.is_throttled == Some(true));
                *lock(&facet.last_xid) = max(&gpus, |gpu| gpu.last_xid);
            }
            sample.gpus = (!gpus.is_empty()).then_some(condition);
        }
    }
}

/// Builds the status of an exporter. The caller adds the numbers of assigned and unassigned GPUs.
fn exporter_status(
    exporter: &ScrapedExporter,
    latest: &LatestScrape,
    now: Instant,
) -> GpuExporterStatus {
    let page = latest.page.as_ref();
    let age = page.map(|(at, _)| now.saturating_duration_since(*at).as_secs_f64());
    GpuExporterStatus {
        exporter: exporter.name.to_string(),
        scrape_age_seconds: age,
        scrape_error: latest.error.map(ScrapeError::as_str),
        is_truncated: page.is_some_and(|(_, page)| page.is_truncated),
        missing: page
            .iter()
            .flat_map(|(_, page)| page.missing_signals())
            .collect(),
        ..GpuExporterStatus::default()
    }
}
