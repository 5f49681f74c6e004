//! The settings of health checks and scrapes, and the observer of their results.

use crate::backend::Backend;
use crate::backend::pool::BackendPool;
use http::HeaderValue;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendAddress;
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_net::client::HttpClient;
use tokenweir_net::page_fetcher::PageFetcher;
use tokenweir_protocol::{settings, units};

settings! {
    /// How the gateway scrapes the metrics of backends and checks their health.
    #[derive(Copy, Eq)]
    pub struct ScrapeSettings {
        /// Time between two scrapes of a backend under load. All backends together are scraped at most
        /// 1,000 times per second.
        #[serde(with = "units::Duration")]
        pub min_interval: Duration,
        /// Time between two scrapes of an idle backend.
        #[serde(with = "units::Duration")]
        pub max_interval: Duration,
        /// Timeout of one scrape or health check.
        #[serde(with = "units::Duration")]
        pub timeout: Duration,
        /// Maximum size of a response to a scrape or to `/v1/models`. A longer one is a failure.
        #[serde(with = "units::Size")]
        pub max_page: usize,
    }
}

impl Default for ScrapeSettings {
    /// The default: scrapes every 100 ms under load and every 5 s when idle, with a timeout of 2 s
    /// and at most 4 MiB per response.
    fn default() -> Self {
        Self {
            min_interval: Duration::from_millis(100),
            max_interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            max_page: 4 << 20,
        }
    }
}

/// The state and the settings that the health checkers of all backends share.
#[derive(Clone)]
pub struct CheckContext {
    /// The pool of the backends, which receives the models that each backend lists.
    pub pool: Arc<BackendPool>,
    /// The client that fetches pages.
    pub client: HttpClient,
    /// Intervals, timeout and size limit of scrapes.
    pub settings: ScrapeSettings,
    pub(in crate::backend) scrape_observer: Arc<dyn ScrapeObserver>,
    /// The checks of all backends are aligned to a common time grid that starts at this moment.
    pub(in crate::backend) alignment_origin: Instant,
}

impl CheckContext {
    /// A fetcher of pages at `address`, with the limits of the settings.
    pub(super) fn fetcher(
        &self,
        address: BackendAddress,
        key: Option<&HeaderValue>,
    ) -> PageFetcher {
        let ScrapeSettings {
            timeout, max_page, ..
        } = self.settings;
        PageFetcher::new(self.client.clone(), address, key, timeout, max_page)
    }
}

/// Receives the results of scrapes, for the metrics of the gateway itself.
pub trait ScrapeObserver: Send + Sync + 'static {
    /// Called at the end of a scrape. `took`: the duration of the scrape. `error`: `None` if the scrape
    /// succeeded.
    fn on_scrape(&self, backend: &Backend, took: Duration, error: Option<ScrapeError>);
}
