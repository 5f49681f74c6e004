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

pub(super) use redactor::{PayloadJob, RedactedPayload};
pub use settings::PayloadLogSettings;

use super::batch_worker::BatchWorkerGuard;
use super::rotating_file::{FileRecordCounts, RotatingFile, RotatingFileCounters};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::clock;
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
    job_queue: Arc<BatchQueue<PayloadJob>>,
    counters: Arc<RotatingFileCounters>,
}

/// Guard of the writer thread. Dropping the guard waits until the thread has written the remaining records.
/// Records that the thread has not begun to write within 1 s are dropped.
pub type PayloadLogGuard = BatchWorkerGuard;

/// The state of the writer thread.
struct PayloadLogWorker {
    settings: PayloadLogSettings,
    file: RotatingFile,
    counters: Arc<RotatingFileCounters>,
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
        let Some(path) = &settings.file else { return Ok(None) };
        let counters = Arc::new(RotatingFileCounters::default());
        let file = RotatingFile::open(path, max_file_bytes / 2, counters.clone())?;
        let mut worker =
            PayloadLogWorker { settings: settings.clone(), file, counters: counters.clone() };
        let job_queue = Arc::new(BatchQueue::new(BATCH_LINGER, MAX_QUEUED_RECORDS));
        let write = move |queue: &_| worker.write_batch(queue);
        let guard = BatchWorkerGuard::start(job_queue.clone(), Duration::MAX, write);
        Ok(Some((Self { job_queue, counters }, guard)))
    }

    /// The counts of records since the start.
    pub fn counts(&self) -> FileRecordCounts {
        self.counters.record_counts(0)
    }
}

impl Sink for PayloadLog {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            // A request that the gateway rejected is not logged, because no model received it.
            let is_logged = record.text_for.log && record.outcome != Outcome::Rejected;
            let prompt = record.prompt.as_ref().filter(|_| is_logged);
            let Some(prompt) = prompt.cloned() else { continue };
            if self.job_queue.push(PayloadJob::from_record(record, prompt), 1).is_err() {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

// === impl PayloadLogWorker ===

impl PayloadLogWorker {
    fn write_batch(&mut self, job_queue: &BatchQueue<PayloadJob>) {
        for job in job_queue.take_batch() {
            let closed_at = job_queue.closed_at();
            if closed_at.is_some_and(|closed| clock::now() >= closed + SHUTDOWN_TIMEOUT) {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let write = || self.file.write_json(&self.settings.redact_texts(&job));
            if supervise::catch_panic(BackgroundTask::ContentLog, write).is_none() {
                self.counters.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
