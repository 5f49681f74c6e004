//! The usage log, for billing. It contains one record for each request that a backend received, with what the
//! request used. Records are never sampled. Where records are missing, the log contains a gap event.
//!
//! ```text
//! request ends ─► bounded queue ─► thread: lines ─► FILE, FILE.old ─► thread: sync ─► push
//! ```
//!
//! A request never waits for the disk. The thread writes a record as soon as it is in the queue. A crash of the
//! process loses the records in the queue. A crash of the machine also loses the lines that were not synced to
//! the disk. While the file cannot be written, records wait in the queue. Records that do not fit into the queue
//! are counted as lost.

mod counters;
mod disk_sync;
mod event;
mod event_reader;
mod push;
pub mod rows;
mod section;
mod state_file;
mod usage_file;
mod usage_record;

#[cfg(test)]
mod tests;

pub use counters::UsageLogStatus;
pub use push::TASK;
pub use section::UsageLogConfig;
pub use usage_file::UsageLogSettings;

use counters::UsageCounters;
use std::io;
use std::time::Duration;
use tokenweir_gateway::telemetry::batch_worker::BatchWorkerGuard;
use tokenweir_net::supervise::{self, SupervisedTask};
use tokenweir_option::prelude::*;
use tokenweir_request::batch_queue::BatchQueue;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::RequestRecord;
use tokenweir_settings::ReceiverError;
use usage_file::UsageFile;
use usage_record::UsageRecord;

/// The sink of the usage log. It must get each record when its request ends, because a record that waits
/// elsewhere is lost if the process is killed.
pub struct UsageLog {
    queue: Arc<BatchQueue<UsageRecord>>,
    counters: Arc<UsageCounters>,
    is_pushed: bool,
}

/// Guard of the threads that write and store the file, and of the push. Dropping the guard waits until the
/// remaining records are stored, but at most 5 s for each thread.
pub struct UsageLogGuard {
    writer: BatchWorkerGuard,
    disk_sync: BatchWorkerGuard,
    push: Option<SupervisedTask>,
    counters: Arc<UsageCounters>,
}

/// Capacity of the queue, in records (about 20 MiB).
const MAX_WAITING_RECORDS: usize = 32_768;
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of looks at whether the receiver has all events.
const SHUTDOWN_INTERVAL: Duration = Duration::from_millis(50);

impl UsageLog {
    /// Opens the file and starts the thread and the push. If another process writes the file, such as the
    /// previous process during an upgrade, records wait until it ends. Must be called inside a Tokio runtime.
    pub fn start(settings: UsageLogSettings) -> io::Result<(Self, UsageLogGuard)> {
        let counters = Arc::<UsageCounters>::default();
        let queue = Arc::new(BatchQueue::new(Duration::ZERO, MAX_WAITING_RECORDS));
        let mut file = UsageFile::open(&settings, &counters, false)?;
        let disk = counters.disk.clone();
        let disk_sync = disk.start(settings.file.clone(), SHUTDOWN_TIMEOUT);
        let push = settings.push.clone();
        let is_pushed = push.is_some();
        let push = push.map(|to| push::start(to, settings.file.clone(), counters.clone()));
        let thread_counters = counters.clone();
        let write = move |queue: &BatchQueue<UsageRecord>| {
            let records = queue.take_batch();
            if records.is_empty() {
                return;
            }
            let written = supervise::catch_panic(TASK, || {
                let open = || UsageFile::open_when_free(&settings, &thread_counters);
                file.get_or_insert_with(open).write(&records);
            });
            if written.is_none() {
                thread_counters.on_lost(records.len() as u64);
            }
        };
        let writer = BatchWorkerGuard::start(queue.clone(), SHUTDOWN_TIMEOUT, write);
        let guard = UsageLogGuard {
            writer,
            disk_sync,
            push,
            counters: counters.clone(),
        };
        Ok((
            Self {
                queue,
                counters,
                is_pushed,
            },
            guard,
        ))
    }

    /// Returns the state of the usage log.
    pub fn status(&self) -> UsageLogStatus {
        self.counters.status(self.is_pushed)
    }
}

impl UsageLogGuard {
    /// Writes the remaining records, and waits at most 5 s until the receiver has them, because the file may be
    /// removed with its container.
    pub async fn shutdown(self) {
        let Self {
            writer,
            disk_sync,
            push,
            counters,
        } = self;
        drop(writer);
        drop(disk_sync);
        if push.is_some() {
            let pushed = async {
                while counters.is_pushing() {
                    tokio::time::sleep(SHUTDOWN_INTERVAL).await;
                }
            };
            // If the time is over, the next process pushes the remaining events.
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, pushed).await;
        }
    }
}

impl Sink for UsageLog {
    fn finished(&self, records: &[&RequestRecord]) {
        // Requests that no backend received have no usage.
        for record in records.iter().filter(|record| !record.attempts.is_empty()) {
            if self
                .queue
                .push(UsageRecord::from_record(record), 1)
                .is_err()
            {
                self.counters.on_lost(1);
            }
        }
    }
}

/// The usage log as an option. Empty without a configured file.
#[derive(Default)]
pub struct UsageLogOption(OnceLock<Arc<UsageLog>>);

impl GatewayOption for UsageLogOption {
    type Settings = UsageLogConfig;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn start(
        self: &Arc<Self>,
        settings: UsageLogConfig,
        context: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        let Some(settings) = settings.settings(&context.host, context.env)? else {
            return Ok(());
        };
        let file = settings.file.display();
        let problem = format!("cannot write the usage log {file} (usage_log.file)");
        let (log, guard) = UsageLog::start(settings).map_err(in_part(problem))?;
        let log = self.0.get_or_init(|| Arc::new(log));
        parts.records.immediate_sinks.push(log.clone());
        parts.gateway.ends.push(Box::pin(guard.shutdown()));
        Ok(())
    }

    fn obstacles(settings: &UsageLogConfig, context: &StartContext<'_>) -> Vec<Obstacle> {
        let mut found = Vec::new();
        let mut add = |path: &str, error: StartError| {
            let path = path.to_owned();
            found.push(Obstacle { path, error });
        };
        let lines = settings.file.as_deref().map(usage_file::check_lines);
        if let Some(Err(error)) = lines
            && error.kind() == io::ErrorKind::InvalidData
        {
            add("usage_log.file", error.into());
        }
        if let Err(error @ ReceiverError::Url(_)) = settings.settings(&context.host, context.env) {
            add("usage_log.push.url", error.into());
        }
        found
    }

    fn add_status(&self, status: &mut StatusSnapshot, _: Instant) {
        if let Some(log) = self.0.get() {
            status.blocks.add(log.status());
        }
    }
}
