//! Scrapes one DCGM exporter (NVIDIA's exporter of GPU metrics) and keeps the last page that it read.

use super::settings::{GpuExporter, GpuSettings};
use crate::page::GpuPage;
use http::StatusCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_net::client::HttpClient;
use tokenweir_net::page_fetcher::PageFetcher;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;

/// A DCGM exporter that the gateway scrapes, and the result of its last scrapes.
#[derive(Debug)]
pub(super) struct ScrapedExporter {
    pub(super) settings: GpuExporter,
    /// Host and port of the URL: the value of the metric label `exporter`.
    pub(super) name: Arc<str>,
    /// The host of the URL, whose backends can own the GPUs of the exporter.
    pub(super) host: Arc<str>,
    latest: Mutex<LatestScrape>,
}

/// The last metrics page that the gateway read from an exporter, and the error of the last scrape.
#[derive(Debug, Clone, Default)]
pub(super) struct LatestScrape {
    /// The page of the last successful scrape, and the time of that scrape. `None`: no scrape has
    /// succeeded.
    pub(super) page: Option<(Instant, Arc<GpuPage>)>,
    /// Why the last scrape failed. `None`: the last scrape succeeded, or no scrape has ended yet.
    pub(super) error: Option<ScrapeError>,
}

impl ScrapedExporter {
    /// Creates the exporter of these settings. `latest`: the result of the scrapes that used the
    /// previous settings.
    pub(super) fn new(settings: GpuExporter, latest: LatestScrape) -> Self {
        let address = &settings.url.address;
        let name = address.authority().into();
        let host = address.host_and_port().0;
        Self {
            name,
            host,
            latest: Mutex::new(latest),
            settings,
        }
    }

    /// Returns the last page that the gateway read from the exporter, and the error of the last
    /// scrape.
    pub(super) fn latest(&self) -> LatestScrape {
        lock(&self.latest).clone()
    }

    /// Scrapes the exporter until the future is dropped.
    pub(super) async fn run(self: Arc<Self>, client: HttpClient, settings: GpuSettings) {
        let url = &self.settings.url;
        let address = url.address.clone();
        let mut fetcher =
            PageFetcher::new(client, address, None, settings.timeout, settings.max_page);
        loop {
            let started_at = clock::now();
            let result = self.scrape(&mut fetcher).await;
            self.store(result, started_at);
            // The interval varies at random by ±10 %, so that several gateways do not scrape at the same
            // times.
            let jitter = 0.9 + 0.2 * fastrand::f64();
            let pause = settings.interval.mul_f64(jitter);
            tokio::time::sleep_until((started_at + pause.max(Duration::from_millis(100))).into())
                .await;
        }
    }

    async fn scrape(&self, fetcher: &mut PageFetcher) -> Result<GpuPage, ScrapeError> {
        match fetcher.fetch(&self.settings.url.path, None).await {
            Ok((StatusCode::OK, body)) => GpuPage::read(body).ok_or(ScrapeError::NotUnderstood),
            Ok(_) => Err(ScrapeError::Status),
            Err(error) => Err(error.into()),
        }
    }

    fn store(&self, result: Result<GpuPage, ScrapeError>, scraped_at: Instant) {
        let error = result.as_ref().err().copied();
        let mut latest = lock(&self.latest);
        let previous_error = std::mem::replace(&mut latest.error, error);
        if let Ok(page) = result {
            latest.page = Some((scraped_at, Arc::new(page)));
        }
        drop(latest);
        let exporter = &*self.name;
        match (previous_error, error) {
            (None, Some(error)) => tracing::warn!(
                exporter,
                error = error.as_str(),
                "cannot read the page of a GPU exporter: keeping its last values"
            ),
            (Some(_), None) => tracing::info!(exporter, "the GPU exporter can be read again"),
            _ => {}
        }
    }
}
