//! Fetches the metrics page of a backend: from its configured URL, or from the first known path that
//! has metrics.

use crate::backend::BackendIdentity;
use http::StatusCode;
use http::uri::PathAndQuery;
use std::time::Duration;
use tokenweir_core::dialect::{self, EngineLoad};
use tokenweir_core::engine_metrics::ScrapeError;
use tokenweir_net::client::HttpClient;
use tokenweir_net::page_fetcher::PageFetcher;

/// The place of the metrics page of one backend.
pub(super) struct MetricsPage {
    /// The fetcher and the path of the configured URL. `None`: the backend itself serves the page.
    configured: Option<(PageFetcher, PathAndQuery)>,
    /// URL path of the page at the backend.
    path: &'static str,
    /// Whether the next fetch tries the other known paths if `path` has no metrics.
    should_discover_path: bool,
}

impl MetricsPage {
    /// The place of the metrics page of a backend. A page is read within `timeout`, up to `max_page`
    /// bytes.
    pub(super) fn new(
        identity: &BackendIdentity,
        client: &HttpClient,
        timeout: Duration,
        max_page: usize,
    ) -> Self {
        let configured = identity.metrics_url.as_ref().map(|url| {
            // The key of the backend is not sent to another host or port.
            let is_backend = url.address == identity.address;
            let key = identity.authorization.as_ref().filter(|_| is_backend);
            let address = url.address.clone();
            (PageFetcher::new(client.clone(), address, key, timeout, max_page), url.path.clone())
        });
        Self { configured, path: dialect::PATHS[0], should_discover_path: true }
    }

    /// Tries all known paths again if the next fetch finds no metrics.
    pub(super) fn rediscover(&mut self) {
        self.should_discover_path = true;
    }

    /// Fetches and reads the page. `backend` fetches pages of the backend itself. If the page has no
    /// metrics and no URL is configured, the other known paths are tried once.
    pub(super) async fn fetch(
        &mut self,
        backend: &mut PageFetcher,
    ) -> Result<EngineLoad, ScrapeError> {
        if let Some((fetcher, path)) = &mut self.configured {
            return read_load(fetcher.get_path(path).await?);
        }
        let load = read_load(backend.get(self.path).await?);
        let is_wrong_path = matches!(load, Err(ScrapeError::Status | ScrapeError::NotUnderstood));
        if is_wrong_path && std::mem::take(&mut self.should_discover_path) {
            for path in dialect::PATHS.into_iter().filter(|path| *path != self.path) {
                if let Ok(load) = backend.get(path).await.map_err(Into::into).and_then(read_load) {
                    self.path = path;
                    return Ok(load);
                }
            }
        }
        load
    }
}

/// Reads the load from a response to a scrape.
fn read_load((status, page): (StatusCode, &[u8])) -> Result<EngineLoad, ScrapeError> {
    if status != StatusCode::OK {
        return Err(ScrapeError::Status);
    }
    let load = EngineLoad::read(page);
    if load.is_understood() { Ok(load) } else { Err(ScrapeError::NotUnderstood) }
}
