//! The payload log: writes prompts and responses of a sample of requests to a file, one JSON object
//! per line. It is disabled unless a file is configured.
//!
//! ```text
//! finished ─► bounded queue ─► thread: built-in patterns ─► truncate ─► file
//! ```
//!
//! Private data is redacted before anything is written.

mod patterns;
mod queue;
mod redact;
mod redactor;
pub mod rows;
mod settings;
#[cfg(test)]
mod tests;

pub(super) use queue::PayloadQueue;
pub use queue::PayloadQueueGuard;
pub(super) use redactor::{PayloadJob, RedactedPayload};
pub use settings::PayloadLogSettings;

use super::rotating_file::{FileRecordCounts, RotatingFile, RotatingFileCounters};
use std::io;
use std::sync::Arc;
use tokenweir_net::supervise::BackgroundTask;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{Outcome, RequestRecord, TextConsumer};
use tokio::sync::watch;

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
    /// The consumer of sampled texts that the log is.
    consumer: TextConsumer,
    queue: PayloadQueue<PayloadJob>,
    file_counters: Arc<RotatingFileCounters>,
}

// === impl PayloadLog ===

impl PayloadLog {
    /// Opens the configured file and starts the writer thread. `None`: no file is configured, so
    /// the payload log is disabled.
    pub fn start(
        settings: &PayloadLogSettings,
        max_file_bytes: u64,
        consumer: TextConsumer,
    ) -> Result<Option<(Self, PayloadQueueGuard)>, PayloadSinkStartError> {
        let Some(path) = &settings.file else { return Ok(None) };
        let file_counters = Arc::new(RotatingFileCounters::default());
        let mut file = RotatingFile::open(path, max_file_bytes / 2, file_counters.clone())?;
        let settings = settings.clone();
        let write = move |jobs: &[PayloadJob]| {
            for job in jobs {
                file.write_json(&settings.redact_texts(job));
            }
        };
        let (queue, guard) =
            PayloadQueue::start(BackgroundTask::ContentLog, 1, watch::Sender::new(None), write);
        Ok(Some((Self { consumer, queue, file_counters }, guard)))
    }

    /// Returns the numbers of records that were written and dropped since the start.
    pub fn counts(&self) -> FileRecordCounts {
        self.file_counters.record_counts(self.queue.dropped())
    }
}

impl Sink for PayloadLog {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            // A request that the gateway rejected is not logged, because no model received it.
            let is_logged =
                record.text_for.has(self.consumer) && record.outcome != Outcome::Rejected;
            let prompt = record.prompt.as_ref().filter(|_| is_logged);
            let Some(prompt) = prompt.cloned() else { continue };
            self.queue.push(PayloadJob::from_record(record, prompt));
        }
    }
}
