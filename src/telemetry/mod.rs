//! The story of a request, told four times: metrics, spans, a log line and an explanation, all
//! from the one record that it leaves. A capture tells it once more, for a laboratory; samples of
//! its text go to those who are named for that.

pub mod access_log;
pub(crate) mod batched;
mod bounded_file;
pub mod buckets;
pub mod capture;
pub mod catalog;
mod collector;
pub mod content;
mod exemplar;
pub mod explain;
pub mod exposition;
pub mod metric;
pub mod otel;
mod parted;
mod post;
#[cfg(target_os = "linux")]
mod process;
pub mod prometheus;
pub mod push;
pub mod quality;
pub mod recent;
mod series;
pub(crate) mod tame;
pub mod teller;
pub mod vitals;

use crate::backend::Backend;
use crate::backend::watch::Tally;
use exposition::Format;
use prometheus::Prometheus;
use std::sync::Arc;
use std::time::Duration;
use teller::{Teller, Telling};
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{Kept, RequestRecord};
use tokenweir_core::signals::ScrapeError;
use tokenweir_net::supervise::{self, Task};
use vitals::Vitals;

/// All sinks.
pub struct Telemetry {
    /// Metrics. `None`: nobody counts them.
    prometheus: Option<Arc<Prometheus>>,
    /// Who hears of a request when it ends.
    sinks: Vec<Arc<dyn Sink>>,
    /// Who hears of it a little later. `None`: nobody.
    teller: Option<Teller>,
}

impl Telemetry {
    /// Metrics, and whatever else listens. All hear of a request when it ends.
    pub fn new(prometheus: impl Into<Option<Prometheus>>, sinks: Vec<Arc<dyn Sink>>) -> Self {
        let prometheus: Option<Arc<Prometheus>> = prometheus.into().map(Arc::new);
        let metrics = prometheus.iter().map(|metrics| metrics.clone() as Arc<dyn Sink>);
        Self { sinks: metrics.chain(sinks).collect(), prometheus, teller: None }
    }

    /// The same, but only `sinks` hear of a request when it ends; a thread tells the metrics and
    /// the `later` ones.
    pub fn with_teller(
        prometheus: impl Into<Option<Prometheus>>,
        sinks: Vec<Arc<dyn Sink>>,
        later: Vec<Arc<dyn Sink>>,
    ) -> (Self, Telling) {
        let Self { prometheus, sinks: later, .. } = Self::new(prometheus, later);
        let (teller, telling) = Teller::start(later);
        (Self { prometheus, sinks, teller: Some(teller) }, telling)
    }

    /// The metrics page, with all requests that had ended when [`Telemetry::settle`] was called
    /// last. `None`: nobody counts.
    pub fn page(&self, vitals: &Vitals, format: Format) -> Option<String> {
        self.prometheus.as_ref().map(|metrics| metrics.page(vitals, format))
    }

    /// Tells what has ended and has not been told.
    pub fn settle(&self) {
        self.teller.iter().for_each(Teller::settle);
    }

    fn all(&self) -> impl Iterator<Item = &Arc<dyn Sink>> {
        self.sinks.iter().chain(self.teller.iter().flat_map(Teller::sinks))
    }
}

/// A panic of a sink costs what the sink would have made of the record, never the request. A request
/// ends while its future is dropped, where a second panic would end the process.
impl Sink for Telemetry {
    fn first_output(&self, record: &RequestRecord) {
        supervise::catch(Task::RecordSink, || {
            self.all().for_each(|sink| sink.first_output(record));
        });
    }

    fn judge(&self, record: &RequestRecord) -> Option<Kept> {
        let judge = || self.all().find_map(|sink| sink.judge(record));
        supervise::catch(Task::RecordSink, judge).flatten()
    }

    fn finished(&self, record: &RequestRecord) {
        self.take(Box::new(record.clone()));
    }

    fn take(&self, record: Box<RequestRecord>) {
        for sink in &self.sinks {
            supervise::catch(Task::RecordSink, || sink.finished(&record));
        }
        if let Some(teller) = &self.teller {
            teller.take(record);
        }
    }
}

impl Tally for Telemetry {
    fn scraped(&self, backend: &Backend, took: Duration, error: Option<ScrapeError>) {
        if let Some(metrics) = &self.prometheus {
            metrics.scraped(&metric::Scrape { backend: backend.id.as_str(), took, error });
        }
    }
}
