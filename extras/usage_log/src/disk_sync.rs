//! Waits until the disk has the lines that were written, on a thread of its own. A written line survives the end
//! of the process, so the thread that writes must not wait for the disk: what waits for it would be lost.

use super::counters::UsageCounters;
use super::usage_file::warn_unwritable;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokenweir_gateway::telemetry::batch_worker::BatchWorkerGuard;
use tokenweir_request::batch_queue::BatchQueue;

/// Lines that the disk may not have yet.
#[derive(Debug)]
pub(super) struct WrittenLines {
    pub(super) file: Arc<File>,
    /// Number of the last line.
    pub(super) last: u64,
}

/// The lines that the disk may not have yet.
#[derive(Debug, Clone)]
pub(super) struct SyncQueue(Arc<BatchQueue<WrittenLines>>);

/// How long the first line waits for further lines, which one sync then stores together. The end of the machine
/// loses them.
const SYNC_LINGER: Duration = Duration::from_millis(100);
/// Capacity of the queue. The thread that writes waits for the disk if it is full.
const MAX_WAITING: usize = 1_024;

impl Default for SyncQueue {
    fn default() -> Self {
        Self(Arc::new(BatchQueue::new(SYNC_LINGER, MAX_WAITING)))
    }
}

impl SyncQueue {
    /// Adds lines. Returns them if the queue is full or closed.
    pub(super) fn push(&self, lines: WrittenLines) -> Result<(), WrittenLines> {
        self.0.push(lines, 1)
    }
}

/// Starts the thread. A drop of the guard waits until the disk has all lines, but at most for `timeout`.
pub(super) fn start(
    counters: Arc<UsageCounters>,
    path: PathBuf,
    timeout: Duration,
) -> BatchWorkerGuard {
    let queue = counters.sync_queue.0.clone();
    let sync = move |_: &BatchQueue<WrittenLines>| sync_waiting(&counters, &path);
    BatchWorkerGuard::start(queue, timeout, sync)
}

/// Waits until the disk has the lines of the queue.
pub(super) fn sync_waiting(counters: &UsageCounters, path: &Path) {
    // A file is stored before the next one is begun, so only the newest has lines that are not.
    if let Some(newest) = counters.sync_queue.0.take_batch().pop() {
        sync(&newest, counters, path);
    }
}

/// Waits until the disk has these lines. The push reads no further.
pub(super) fn sync(lines: &WrittenLines, counters: &UsageCounters, path: &Path) {
    match lines.file.sync_data() {
        Ok(()) => drop(counters.synced.fetch_max(lines.last, Relaxed)),
        Err(error) => warn_unwritable(path, &error),
    }
}
