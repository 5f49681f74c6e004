//! Syncs written lines to the disk, on a separate thread. A written line survives the end of the process, so
//! the writing thread must not wait for the disk. Otherwise queued records could be lost.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::telemetry::batch_worker::BatchWorkerGuard;
use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_request::batch_queue::BatchQueue;

#[derive(Debug)]
pub(super) struct WrittenLines {
    pub(super) file: Arc<File>,
    pub(super) last: u64,
}

#[derive(Debug)]
pub(super) struct DiskSync {
    waiting: Arc<BatchQueue<WrittenLines>>,
    /// Number of the last line that is synced to the disk. The push reads no further.
    pub(super) synced: AtomicCounter,
}

/// How long the first line waits for further lines, so that one sync stores all of them. A crash of the machine
/// loses them.
const SYNC_LINGER: Duration = Duration::from_millis(100);
/// Capacity of the queue. If it is full, the writing thread waits for the disk.
const MAX_WAITING: usize = 1_024;

impl Default for DiskSync {
    fn default() -> Self {
        Self {
            waiting: Arc::new(BatchQueue::new(SYNC_LINGER, MAX_WAITING)),
            synced: AtomicCounter::new(),
        }
    }
}

impl DiskSync {
    /// Starts the thread. Dropping the guard waits until all lines are synced, but at most for `timeout`.
    pub(super) fn start(self: Arc<Self>, path: PathBuf, timeout: Duration) -> BatchWorkerGuard {
        let waiting = self.waiting.clone();
        let sync = move |_: &BatchQueue<WrittenLines>| self.sync_waiting(&path);
        BatchWorkerGuard::start(waiting, timeout, sync)
    }

    /// Queues these lines for the sync.
    pub(super) fn add(&self, lines: WrittenLines, path: &Path) {
        if let Err(lines) = self.waiting.push(lines, 1) {
            self.sync(&lines, path);
        }
    }

    /// Syncs all queued lines.
    pub(super) fn sync_waiting(&self, path: &Path) {
        // Each file is synced before the next one is begun, so only the newest has unsynced lines.
        if let Some(newest) = self.waiting.take_batch().pop() {
            self.sync(&newest, path);
        }
    }

    /// Syncs these lines.
    pub(super) fn sync(&self, lines: &WrittenLines, path: &Path) {
        match lines.file.sync_data() {
            Ok(()) => self.synced.raise_to(lines.last),
            Err(error) => warn_unwritable(path, &error),
        }
    }
}

pub(super) fn warn_unwritable(file: &Path, error: &io::Error) {
    tracing::error!(
        file = %file.display(),
        %error,
        "the usage log cannot be written: its records wait in memory"
    );
}
