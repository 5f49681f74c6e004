//! Fetches the metrics page of a backend: from its configured URL, or from the first known path that serves
//! metrics.

use super::settings::CheckContext;
use crate::backend::BackendIdentity;
use crate::backend::state::DownCause;
use http::StatusCode;
use http::uri::PathAndQuery;
use memchr::memmem;
use tokenweir_engine::dialect::{self, EngineLoad, TokenCounts};
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_net::page_fetcher::PageFetcher;

/// The location of the metrics page of one backend, and the contents of the last page.
pub(super) struct MetricsPage {
    /// The fetcher and the path of the configured URL. `None`: the backend itself serves the page.
    configured: Option<(PageFetcher, PathAndQuery)>,
    /// URL path of the metrics page at the backend.
    path: &'static str,
    pub(super) last: LastPage,
    /// Whether the next fetch tries the other known paths if `path` has no metrics.
    pub(super) should_discover_path: bool,
}

/// The values of the last page. A comparison with the next page shows whether the engine works.
#[derive(Debug, Default)]
pub(super) struct LastPage {
    /// The engine's counters of prompt tokens and of generation tokens. `None`: the engine is idle,
    /// or does not report them.
    token_counts: Option<TokenCounts>,
    /// A hash of all values of the engine. `None`: not computed, because the engine is idle or its token
    /// counts had changed.
    pub(super) engine_values: Option<u64>,
    /// The reason that the last response stated, if its status was 503. vLLM answers 503 to everything but
    /// `/health` while its number of data-parallel ranks changes, and after the server was removed from a group
    /// of ranks. `None`: the last response had another status.
    unavailable: Option<DownCause>,
    /// Whether the page has the OpenMetrics format, although the gateway did not request it. Such a page ends
    /// with `# EOF`.
    pub(super) is_openmetrics: bool,
}

impl MetricsPage {
    pub(super) fn new(identity: &BackendIdentity, context: &CheckContext) -> Self {
        let configured = identity.metrics_url.as_ref().map(|url| {
            // The API key of the backend is not sent to another host or port.
            let is_backend = url.address.is_same_server(&identity.address);
            let key = if is_backend {
                identity.authorization.as_ref()
            } else {
                None
            };
            (context.fetcher(url.address.clone(), key), url.path.clone())
        });
        Self {
            configured,
            path: dialect::PATHS[0],
            last: LastPage::default(),
            should_discover_path: true,
        }
    }

    /// Returns why the backend answered the last request for the metrics page with 503. `None`: the
    /// response had another status, or the page has a configured URL.
    pub(super) fn unavailable(&self) -> Option<DownCause> {
        if self.configured.is_some() {
            None
        } else {
            self.last.unavailable
        }
    }

    /// Whether the backend itself serves the page.
    pub(super) const fn is_at_backend(&self) -> bool {
        self.configured.is_none()
    }

    /// Fetches and reads the page. `backend` fetches pages of the backend itself. If the page has no
    /// metrics and no URL is configured, the other known paths are tried once. `read` gets the text of the page, too.
    pub(super) async fn fetch(
        &mut self,
        backend: &mut PageFetcher,
        mut read: impl FnMut(&[u8], Option<&EngineLoad>),
    ) -> Result<EngineLoad, ScrapeError> {
        if let Some((fetcher, path)) = &mut self.configured {
            return read_load(fetcher.fetch(path, None).await?, &mut self.last, &mut read);
        }
        let load = read_load(backend.get(self.path).await?, &mut self.last, &mut read);
        let is_wrong_path = matches!(load, Err(ScrapeError::Status | ScrapeError::NotUnderstood));
        if is_wrong_path && std::mem::take(&mut self.should_discover_path) {
            for path in dialect::PATHS.into_iter().filter(|path| *path != self.path) {
                let page = backend.get(path).await.map_err(Into::into);
                if let Ok(load) = page.and_then(|page| read_load(page, &mut self.last, &mut read)) {
                    self.path = path;
                    return Ok(load);
                }
            }
        }
        load
    }
}

/// Reads the load from a response to a scrape. Computes the hash of all values only if the token counts have
/// not changed, because only then the hash decides whether the engine works.
fn read_load(
    response: (StatusCode, &[u8]),
    last: &mut LastPage,
    mut read: impl FnMut(&[u8], Option<&EngineLoad>),
) -> Result<EngineLoad, ScrapeError> {
    let (status, page) = response;
    if status != StatusCode::OK {
        let says = |text: &[u8]| memmem::find(page, text).is_some();
        let unavailable = (status == StatusCode::SERVICE_UNAVAILABLE).then(|| match () {
            () if says(b"retired") => DownCause::Retired,
            () if says(b"scaling") => DownCause::Scaling,
            () => DownCause::Other,
        });
        read(page, None);
        *last = LastPage {
            unavailable,
            ..LastPage::default()
        };
        return Err(ScrapeError::Status);
    }
    let load = EngineLoad::read(page);
    let token_counts = load.token_counts_if_busy();
    let is_same = token_counts.is_some() && token_counts == last.token_counts;
    let engine_values = is_same.then(|| dialect::hash_engine_values(page));
    let is_openmetrics = page.trim_ascii_end().ends_with(b"# EOF");
    read(page, Some(&load));
    *last = LastPage {
        token_counts,
        engine_values,
        unavailable: None,
        is_openmetrics,
    };
    if load.is_understood() {
        Ok(load)
    } else {
        Err(ScrapeError::NotUnderstood)
    }
}
