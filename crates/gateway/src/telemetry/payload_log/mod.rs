//! The payload log: writes prompts and responses of a sample of requests to a file, one JSON object
//! per line. It is disabled unless a file is configured.
//!
//! ```text
//! finished ─► bounded queue ─► thread: built-in patterns ─► truncate ─► file
//! ```
//!
//! Private data is redacted before anything is written.

mod patterns;
mod redact;
mod redactor;
mod settings;
#[cfg(test)]
mod tests;

pub(super) use redactor::{PayloadRedactor, RedactedPayload};
pub use settings::PayloadLogSettings;

use super::batch_worker::BatchWorkerGuard;
use super::rotating_file::{FileRecordCounts, RotatingFile, RotatingFileCounters};
use super::sanitize;
use serde::Serialize;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::TextExcerpt;
use tokenweir_request::batch_queue::BatchQueue;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{Outcome, RequestRecord};

/// Why the payload log or quality monitoring cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PayloadSinkStartError {
    /// The file cannot be opened, or a runtime cannot be created.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The URL of the judge is invalid or has no host.
    #[error("`{0}` is not a valid URL of a judge; configure an absolute http URL (quality.judge)")]
    InvalidUrl(String),
}

/// The sink of the payload log. It queues the prompts and responses of sampled requests for the writer
/// thread.
pub struct PayloadLog {
    job_queue: Arc<BatchQueue<PayloadLogJob>>,
    counters: Arc<PayloadLogCounters>,
}

/// Guard of the writer thread. Dropping the guard waits until the thread has written the remaining records.
/// Records that the thread has not begun to write within 1 s are dropped.
pub type PayloadLogGuard = BatchWorkerGuard;

/// A handle that reads the counts of payload log records.
#[derive(Debug, Clone)]
pub struct PayloadLogStats(Arc<PayloadLogCounters>);

#[derive(Debug, Default)]
struct PayloadLogCounters {
    /// Records dropped because the queue was full, the gateway shut down or the writer panicked.
    unprocessed: AtomicU64,
    file_counters: Arc<RotatingFileCounters>,
}

/// The texts of one request in the queue of the writer thread.
struct PayloadLogJob {
    header: PayloadHeader,
    prompt: TextExcerpt,
    /// The text of the response.
    answer: TextExcerpt,
}

/// The fields of a line that identify the request to which the texts belong.
#[derive(Debug, Serialize)]
pub(super) struct PayloadHeader {
    ts: String,
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    model: String,
}

/// One line of the payload log, with the fields in this order.
#[derive(Debug, Serialize)]
struct PayloadLogLine<'a> {
    #[serde(flatten)]
    header: &'a PayloadHeader,
    #[serde(flatten)]
    texts: RedactedPayload,
}

/// The state of the writer thread.
struct PayloadLogWorker {
    redactor: PayloadRedactor,
    file: RotatingFile,
    counters: Arc<PayloadLogCounters>,
    shutdown_timeout: Duration,
}

/// Capacity of the queue, in requests. If the queue is full, further requests are not logged, and
/// are counted as dropped.
const MAX_QUEUED_RECORDS: usize = 256;
/// How long the first queued request waits for further requests before they are processed together.
const BATCH_LINGER: Duration = Duration::from_millis(50);
/// Time for the queued requests at shutdown. Requests that the writer thread has not begun to write by then
/// are dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

// === impl PayloadLog ===

impl PayloadLog {
    /// Opens the configured file and starts the writer thread. `None`: no file is configured, so
    /// the payload log is disabled.
    pub fn start(
        settings: &PayloadLogSettings,
        max_file_bytes: u64,
    ) -> Result<Option<(Self, PayloadLogGuard)>, PayloadSinkStartError> {
        Self::start_with_timeout(settings, max_file_bytes, SHUTDOWN_TIMEOUT)
    }

    /// Like [`PayloadLog::start`], with `shutdown_timeout` as the time for the queued requests at shutdown.
    fn start_with_timeout(
        settings: &PayloadLogSettings,
        max_file_bytes: u64,
        shutdown_timeout: Duration,
    ) -> Result<Option<(Self, PayloadLogGuard)>, PayloadSinkStartError> {
        let Some(path) = &settings.file else { return Ok(None) };
        let counters = Arc::new(PayloadLogCounters::default());
        let file = RotatingFile::open(path, max_file_bytes / 2, counters.file_counters.clone())?;
        let redactor = PayloadRedactor::new(settings);
        let mut worker =
            PayloadLogWorker { redactor, file, counters: counters.clone(), shutdown_timeout };
        let job_queue = Arc::new(BatchQueue::new(BATCH_LINGER, MAX_QUEUED_RECORDS));
        let write = move |queue: &_| worker.write_batch(queue);
        let guard = BatchWorkerGuard::start(job_queue.clone(), Duration::MAX, write);
        Ok(Some((Self { job_queue, counters }, guard)))
    }

    /// A handle that reads the counts of records.
    pub fn counter(&self) -> PayloadLogStats {
        PayloadLogStats(self.counters.clone())
    }
}

impl Sink for PayloadLog {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            // A request that the gateway rejected is not logged, because no model received it.
            let is_logged = record.text_for.log && record.outcome != Outcome::Rejected;
            let prompt = record.prompt.as_ref().filter(|_| is_logged);
            let Some(prompt) = prompt.cloned() else { continue };
            let answer = record.observed.text_excerpt.clone().unwrap_or_default();
            let job = PayloadLogJob { header: PayloadHeader::from_record(record), prompt, answer };
            if self.job_queue.push(job, 1).is_err() {
                self.counters.unprocessed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

// === impl PayloadHeader, PayloadLogWorker ===

impl PayloadHeader {
    pub(super) fn from_record(record: &RequestRecord) -> Self {
        Self {
            ts: humantime::format_rfc3339_millis(record.started).to_string(),
            request_id: record.request_id.as_str().to_owned(),
            trace_id: record.trace.as_ref().map(|trace| format!("{:032x}", trace.trace_id)),
            model: record.model.name().to_owned(),
        }
    }

    /// The name of the model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }
}

impl PayloadLogWorker {
    fn write_batch(&mut self, job_queue: &BatchQueue<PayloadLogJob>) {
        for job in job_queue.take_batch() {
            let closed_at = job_queue.closed_at();
            if closed_at.is_some_and(|closed| clock::now() >= closed + self.shutdown_timeout) {
                self.counters.unprocessed.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let write = || self.write_record(&job);
            if supervise::catch_panic(BackgroundTask::ContentLog, write).is_none() {
                self.counters.unprocessed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Redacts the texts of one request and writes the line.
    fn write_record(&mut self, job: &PayloadLogJob) {
        let texts = self.redactor.redact_texts(&job.prompt, &job.answer);
        let line = PayloadLogLine { header: &job.header, texts };
        let mut text = sanitize::json(serde_json::to_string(&line).unwrap_or_default());
        text.push('\n');
        // `RotatingFile` counts failed writes itself, and returns no error.
        let _ = self.file.write_all(text.as_bytes());
    }
}

// === impl PayloadLogStats ===

impl PayloadLogStats {
    /// The counts since the start.
    pub fn counts(&self) -> FileRecordCounts {
        let PayloadLogCounters { unprocessed, file_counters } = &*self.0;
        file_counters.record_counts(unprocessed.load(Ordering::Relaxed))
    }
}
