//! The payload log: writes prompts and responses of a sample of requests to a file, one JSON object
//! per line. It is disabled unless a file is configured.
//!
//! ```text
//! finished ─► bounded queue ─► thread: built-in patterns ─► truncate ─► file
//! ```
//!
//! Private data is redacted before anything is written.

pub mod rows;
mod section;
mod settings;
#[cfg(test)]
mod tests;

pub use section::{check, output_file};
pub use settings::PayloadLogSettings;

use rows::PayloadLogStatus;
use std::io;
use std::path::Path;
use tokenweir_gateway::telemetry::rotating_file::{
    FileRecordCounts, RotatingFile, RotatingFileCounters,
};
use tokenweir_option::prelude::*;
use tokenweir_redaction::{PayloadJob, PayloadQueue, PayloadQueueGuard, RedactionSettings};
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{Outcome, RequestRecord, TextConsumer};
use tokio::sync::watch;

/// Redacts and writes records of the payload log.
pub const TASK: BackgroundTask = BackgroundTask::new("content_log");

/// The sink of the payload log. It queues the prompts and responses of sampled requests for the writer
/// thread.
pub struct PayloadLog {
    consumer: TextConsumer,
    queue: PayloadQueue<PayloadJob>,
    file_counters: Arc<RotatingFileCounters>,
}

impl PayloadLog {
    /// Opens the file and starts the writer thread. Prompts and responses are redacted with `redaction`.
    pub fn start(
        file: &Path,
        redaction: RedactionSettings,
        max_file_bytes: u64,
        consumer: TextConsumer,
    ) -> io::Result<(Self, PayloadQueueGuard)> {
        let file_counters = Arc::new(RotatingFileCounters::default());
        let mut file = RotatingFile::open(file, max_file_bytes / 2, file_counters.clone())?;
        let write = move |jobs: &[PayloadJob]| {
            for job in jobs {
                file.write_json(&redaction.redact_texts(job));
            }
        };
        let (queue, guard) = PayloadQueue::start(TASK, 1, watch::Sender::new(None), write);
        let log = Self {
            consumer,
            queue,
            file_counters,
        };
        Ok((log, guard))
    }

    /// Returns the numbers of records that were written and dropped since the start.
    pub fn counts(&self) -> FileRecordCounts {
        self.file_counters.record_counts(self.queue.dropped())
    }
}

impl Sink for PayloadLog {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            // Requests that the gateway rejected are not logged, because no model received them.
            if record.outcome == Outcome::Rejected || !record.text_for.has(self.consumer) {
                continue;
            }
            let Some(prompt) = record.prompt.clone() else {
                continue;
            };
            self.queue.push(PayloadJob::from_record(record, prompt));
        }
    }
}

/// The payload log as an option. Later options use its settings to redact texts in the same way.
#[derive(Default)]
pub struct PayloadLogOption(OnceLock<Arc<PayloadLog>>);

impl GatewayOption for PayloadLogOption {
    type Settings = PayloadLogSettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn start(
        self: &Arc<Self>,
        settings: PayloadLogSettings,
        context: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        parts.records.text_sampling.max_text_bytes = settings.excerpt_bytes();
        if let Some(file) = &settings.file {
            let consumer = parts.records.add_text_sample(settings.sample, false);
            let redaction = settings.redaction();
            let started = PayloadLog::start(file, redaction, context.max_file_bytes, consumer);
            let (log, guard) =
                started.map_err(in_part("cannot start the payload log (log.payloads)"))?;
            let _ = self.0.set(parts.add_sink(log, guard));
        }
        parts.gateway.share(Arc::new(settings));
        Ok(())
    }

    fn add_status(&self, status: &mut StatusSnapshot, _: Instant) {
        if let Some(log) = self.0.get() {
            status.blocks.add(PayloadLogStatus(log.counts()));
        }
    }

    fn output(settings: &PayloadLogSettings) -> Option<OutputTarget> {
        let target = settings.target()?;
        Some(OutputTarget {
            key: "payload_log",
            name: "payloads",
            text: format!("PROMPTS AND RESPONSES of {target} (log.payloads)"),
            target,
        })
    }
}
