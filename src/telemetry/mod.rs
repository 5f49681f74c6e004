//! Telemetry: every finished request leaves one record, and several sinks read it.
//!
//! The sinks are metrics, spans, the access log, the decision log, recent requests, the payload
//! log, quality sampling and the trace capture.

pub mod access_log;
pub mod batch_dispatcher;
pub mod batch_worker;
pub mod catalog;
mod clients;
pub mod decision_log;
pub mod metric;
pub mod metrics_push;
pub mod metrics_registry;
pub(crate) mod non_blocking_writer;
pub mod otel;
pub mod payload_log;
pub mod quality;
pub mod recent_requests;
mod rotating_file;
pub(crate) mod sanitize;
pub mod status;
pub mod trace_capture;

use crate::backend::Backend;
use crate::backend::health_checker::ScrapeObserver;
use batch_dispatcher::{BatchDispatcher, BatchDispatcherGuard};
use metrics_registry::{ExpositionFormat, Prometheus};
use status::StatusSnapshot;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::engine_metrics::ScrapeError;
use tokenweir_core::observe::{RecordReceiver, Sink};
use tokenweir_core::record::{RequestRecord, SampleReason};
use tokenweir_net::supervise::{self, BackgroundTask};

/// The sinks of request records.
pub struct Telemetry {
    /// Prometheus metrics. `None`: metrics are disabled.
    prometheus: Option<Arc<Prometheus>>,
    /// Sinks that receive a record when its request ends, on the thread that ends it.
    sinks: Vec<Arc<dyn Sink>>,
    /// Passes records in batches to further sinks, on a thread of its own. `None`: there are no
    /// further sinks.
    batch_dispatcher: Option<BatchDispatcher>,
}

impl Telemetry {
    /// Metrics and `sinks`. All receive a record when its request ends.
    pub fn new(prometheus: impl Into<Option<Prometheus>>, sinks: Vec<Arc<dyn Sink>>) -> Self {
        let prometheus: Option<Arc<Prometheus>> = prometheus.into().map(Arc::new);
        let metrics = prometheus.iter().map(|metrics| metrics.clone() as Arc<dyn Sink>);
        Self { sinks: metrics.chain(sinks).collect(), prometheus, batch_dispatcher: None }
    }

    /// Only `sinks` receive a record when its request ends. A thread passes records in batches to
    /// the metrics and to `batched`. Dropping the returned guard passes on the remaining records
    /// and ends the thread.
    pub fn with_batch_dispatcher(
        prometheus: impl Into<Option<Prometheus>>,
        sinks: Vec<Arc<dyn Sink>>,
        batched: Vec<Arc<dyn Sink>>,
    ) -> (Self, BatchDispatcherGuard) {
        let Self { prometheus, sinks: batched, .. } = Self::new(prometheus, batched);
        let (dispatcher, guard) = BatchDispatcher::start(batched);
        (Self { prometheus, sinks, batch_dispatcher: Some(dispatcher) }, guard)
    }

    /// The metrics page. It includes all requests that had ended at the last call of
    /// [`Telemetry::settle`]. `None`: metrics are disabled.
    pub fn page(&self, vitals: &StatusSnapshot, format: ExpositionFormat) -> Option<String> {
        self.prometheus.as_ref().map(|metrics| metrics.page(vitals, format))
    }

    /// Waits until the batched sinks have received the records of all requests that have ended.
    pub fn settle(&self) {
        self.batch_dispatcher.iter().for_each(BatchDispatcher::settle);
    }

    /// Whether the trace of a finished request is exported, and why.
    fn judge(&self, record: &RequestRecord) -> Option<SampleReason> {
        let judge = || self.all_sinks().find_map(|sink| sink.judge(record));
        supervise::catch_panic(BackgroundTask::RecordSink, judge).flatten()
    }

    fn all_sinks(&self) -> impl Iterator<Item = &Arc<dyn Sink>> {
        self.sinks.iter().chain(self.batch_dispatcher.iter().flat_map(BatchDispatcher::sinks))
    }
}

/// A panic of a sink costs the output of that sink for this record, never the request. A request
/// can end while its future is dropped during unwinding, where a second panic would abort the
/// process.
impl RecordReceiver for Telemetry {
    fn first_output(&self, record: &RequestRecord) {
        supervise::catch_panic(BackgroundTask::RecordSink, || {
            self.all_sinks().for_each(|sink| sink.first_output(record));
        });
    }

    fn finished(&self, mut record: Box<RequestRecord>) {
        record.sample_reason = self.judge(&record);
        for sink in &self.sinks {
            supervise::catch_panic(BackgroundTask::RecordSink, || sink.finished(&[&record]));
        }
        if let Some(dispatcher) = &self.batch_dispatcher {
            dispatcher.enqueue(record);
        }
    }
}

impl ScrapeObserver for Telemetry {
    fn on_scrape(&self, backend: &Backend, took: Duration, error: Option<ScrapeError>) {
        if let Some(metrics) = &self.prometheus {
            metrics.record_scrape(&metric::ScrapeResult {
                backend: backend.identity.id.as_str(),
                took,
                error,
            });
        }
    }
}
