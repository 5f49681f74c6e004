//! Telemetry: passes the record of each finished request to all sinks.
//!
//! The sinks of the core are metrics, spans, the access log, the decision log and recent requests.

pub mod access_log;
pub mod batch_dispatcher;
pub mod batch_worker;
pub mod catalog;
pub mod cpu_time;
pub mod decision_log;
pub mod metrics_registry;
pub mod non_blocking_writer;
pub mod otel;
pub mod recent_requests;
pub mod rotating_file;
pub mod sanitize;
pub mod timer_delays;

use crate::backend::Backend;
use crate::backend::health_checker::ScrapeObserver;
use crate::metric;
use crate::status::StatusSnapshot;
use batch_dispatcher::{BatchDispatcher, BatchDispatcherGuard};
use metrics_registry::{ExpositionFormat, Prometheus};
pub use rotating_file::reopen_files;
use std::sync::Arc;
use std::time::Duration;
use timer_delays::TimerDelays;
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_request::answer::AnswerJudge;
use tokenweir_request::observe::{RecordReceiver, Sink};
use tokenweir_request::record::{RequestRecord, SampleReason};

/// The sinks of request records.
pub struct Telemetry {
    /// Prometheus metrics. `None`: metrics are disabled.
    prometheus: Option<Arc<Prometheus>>,
    /// Sinks that receive each record on the thread that ends its request.
    sinks: Vec<Arc<dyn Sink>>,
    /// Passes records to the sinks outside of `sinks` in batches, on its own thread. `None`: `sinks` contains
    /// all sinks.
    batch_dispatcher: Option<Arc<BatchDispatcher>>,
    /// The delays with which timers of the runtime fire, which show a lack of CPU time.
    pub timer_delays: TimerDelays,
}

impl Telemetry {
    /// Creates the telemetry without a dispatch thread. The metrics and `sinks` receive each record
    /// on the thread that ends its request.
    pub fn new(prometheus: impl Into<Option<Prometheus>>, sinks: Vec<Arc<dyn Sink>>) -> Self {
        let prometheus: Option<Arc<Prometheus>> = prometheus.into().map(Arc::new);
        let metrics = prometheus
            .iter()
            .map(|metrics| metrics.clone() as Arc<dyn Sink>);
        Self {
            sinks: metrics.chain(sinks).collect(),
            prometheus,
            batch_dispatcher: None,
            timer_delays: TimerDelays::default(),
        }
    }

    /// Creates the telemetry with a dispatch thread. `sinks` receive each record on the thread that ends its
    /// request. The dispatch thread passes records in batches to the metrics and to `batched`. Before that,
    /// `judge` judges the answers of the records. Dropping the returned guard dispatches the remaining records
    /// and ends the dispatch thread.
    pub fn with_batch_dispatcher(
        prometheus: impl Into<Option<Prometheus>>,
        sinks: Vec<Arc<dyn Sink>>,
        batched: Vec<Arc<dyn Sink>>,
        judge: AnswerJudge,
    ) -> (Self, BatchDispatcherGuard) {
        let without = Self::new(prometheus, batched);
        let (dispatcher, guard) = BatchDispatcher::start(without.sinks, judge);
        let telemetry = Self {
            sinks,
            batch_dispatcher: Some(dispatcher),
            ..without
        };
        (telemetry, guard)
    }

    /// Renders the metrics page with all requests that had ended at the last call of [`Telemetry::settle`].
    /// `None`: metrics are disabled.
    pub fn page(&self, status: &StatusSnapshot, format: ExpositionFormat) -> Option<Vec<u8>> {
        let metrics = self.prometheus.as_ref()?;
        Some(metrics.page(status, format))
    }

    /// Returns the format of the metrics page for an `Accept` header.
    pub fn page_format(&self, accept: &str) -> ExpositionFormat {
        let is_native = self.prometheus.as_ref().is_some_and(|it| it.is_native);
        ExpositionFormat::accepted(accept, is_native)
    }

    /// Records the delay with which a timer of the async runtime fired, as a value of the
    /// scheduling delay metric.
    pub fn on_scheduling_delay(&self, delay: Duration) {
        self.timer_delays.record(delay);
        if let Some(metrics) = &self.prometheus {
            metrics.record(metric::SCHEDULING_DELAY_METRIC, &[], delay.as_secs_f64());
        }
    }

    /// Flushes the batch dispatcher. On return, its sinks have received the records of all requests that ended
    /// before the call.
    pub fn settle(&self) {
        self.batch_dispatcher
            .iter()
            .for_each(|dispatcher| dispatcher.flush());
    }

    /// Returns why the trace of a finished request is sampled. The first sink with a reason decides. `None`:
    /// the trace is not sampled, or a sink panicked.
    fn determine_sample_reason(&self, record: &RequestRecord) -> Option<SampleReason> {
        let find_reason = || self.all_sinks().find_map(|sink| sink.sample_reason(record));
        supervise::catch_panic(BackgroundTask::RECORD_SINK, find_reason).flatten()
    }

    fn all_sinks(&self) -> impl Iterator<Item = &Arc<dyn Sink>> {
        self.sinks
            .iter()
            .chain(self.batch_dispatcher.iter().flat_map(|it| &it.sinks))
    }
}

/// Catches the panics of sinks. A sink that panics for a record produces no output for it, and the request is
/// not affected. Catching is necessary because a request can end while its future is dropped during unwinding,
/// where a second panic would abort the process.
impl RecordReceiver for Telemetry {
    fn first_output(&self, record: &RequestRecord) {
        supervise::catch_panic(BackgroundTask::RECORD_SINK, || {
            self.all_sinks().for_each(|sink| sink.first_output(record));
        });
    }

    fn response_named(&self, record: &RequestRecord, id: &str) {
        supervise::catch_panic(BackgroundTask::RECORD_SINK, || {
            self.sinks
                .iter()
                .for_each(|sink| sink.response_named(record, id));
        });
    }

    fn finished(&self, mut record: Box<RequestRecord>) {
        record.sample_reason = self.determine_sample_reason(&record);
        if self.batch_dispatcher.is_none() {
            AnswerJudge::default().judge(std::iter::once(&mut *record));
        }
        for sink in &self.sinks {
            supervise::catch_panic(BackgroundTask::RECORD_SINK, || sink.finished(&[&record]));
        }
        if let Some(dispatcher) = &self.batch_dispatcher {
            dispatcher.enqueue(record);
        }
    }
}

impl ScrapeObserver for Telemetry {
    fn on_scrape(&self, backend: &Backend, took: Duration, error: Option<ScrapeError>) {
        let Some(metrics) = &self.prometheus else {
            return;
        };
        let backend = backend.identity.id.as_str();
        metrics.record(
            metric::SCRAPE_DURATION_METRIC,
            &[backend],
            took.as_secs_f64(),
        );
        if let Some(error) = error {
            metrics.record(
                metric::SCRAPE_ERRORS_METRIC,
                &[backend, error.as_str()],
                1.0,
            );
        }
    }
}
