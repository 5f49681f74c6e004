//! The story of a request, told four times: metrics, spans, a log line and an explanation, all
//! from the one record that it leaves. A capture tells it once more, for a laboratory.

pub mod access_log;
pub mod buckets;
pub mod capture;
pub mod catalog;
mod exemplar;
pub mod explain;
pub mod exposition;
pub mod metric;
pub mod otel;
#[cfg(target_os = "linux")]
mod process;
pub mod prometheus;
mod series;
pub mod vitals;

use crate::backend::Backend;
use crate::backend::ScrapeError;
use crate::backend::watch::Tally;
use crate::observe::Sink;
use crate::record::{Kept, RequestRecord};
use std::sync::Arc;
use std::time::Duration;

/// All sinks.
pub struct Telemetry {
    /// Metrics. `None`: nobody counts them.
    pub prometheus: Option<prometheus::Prometheus>,
    sinks: Vec<Arc<dyn Sink>>,
}

impl Telemetry {
    /// Metrics, and whatever else listens.
    pub fn new(
        prometheus: impl Into<Option<prometheus::Prometheus>>,
        sinks: Vec<Arc<dyn Sink>>,
    ) -> Self {
        Self { prometheus: prometheus.into(), sinks }
    }
}

impl Sink for Telemetry {
    fn first_output(&self, record: &RequestRecord) {
        self.prometheus.iter().for_each(|metrics| metrics.first_output(record));
        self.sinks.iter().for_each(|sink| sink.first_output(record));
    }

    fn judge(&self, record: &RequestRecord) -> Option<Kept> {
        self.sinks.iter().find_map(|sink| sink.judge(record))
    }

    fn finished(&self, record: &RequestRecord) {
        self.prometheus.iter().for_each(|metrics| metrics.finished(record));
        self.sinks.iter().for_each(|sink| sink.finished(record));
    }
}

impl Tally for Telemetry {
    fn scraped(&self, backend: &Backend, took: Duration, error: Option<ScrapeError>) {
        if let Some(metrics) = &self.prometheus {
            metrics.scraped(&metric::Scrape { backend: backend.id.as_str(), took, error });
        }
    }
}
