//! Waits until the disk has the lines that were written, on a thread of its own. A written line survives the end
//! of the process, so the thread that writes must not wait for the disk: what waits for it would be lost.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokenweir_gateway::telemetry::batch_worker::BatchWorkerGuard;
use tokenweir_request::batch_queue::BatchQueue;

#[derive(Debug)]
pub(super) struct WrittenLines {
    pub(super) file: Arc<File>,
    pub(super) last: u64,
}

#[derive(Debug)]
pub(super) struct DiskSync {
    waiting: Arc<BatchQueue<WrittenLines>>,
    /// Number of the last line that the disk has. The push reads no further.
    pub(super) synced: AtomicU64,
}

/// How long the first line waits for further lines, which one sync then stores together. The end of the machine
/// loses them.
const SYNC_LINGER: Duration = Duration::from_millis(100);
/// Capacity of the queue. The thread that writes waits for the disk if it is full.
const MAX_WAITING: usize = 1_024;

impl Default for DiskSync {
    fn default() -> Self {
        Self {
            waiting: Arc::new(BatchQueue::new(SYNC_LINGER, MAX_WAITING)),
            synced: AtomicU64::new(0),
        }
    }
}

impl DiskSync {
    /// Starts the thread. A drop of the guard waits until the disk has all lines, but at most for `timeout`.
    pub(super) fn start(self: Arc<Self>, path: PathBuf, timeout: Duration) -> BatchWorkerGuard {
        let waiting = self.waiting.clone();
        let sync = move |_: &BatchQueue<WrittenLines>| self.sync_waiting(&path);
        BatchWorkerGuard::start(waiting, timeout, sync)
    }

    /// Lets the thread store these lines.
    pub(super) fn add(&self, lines: WrittenLines, path: &Path) {
        if let Err(lines) = self.waiting.push(lines, 1) {
            self.sync(&lines, path);
        }
    }

    /// Waits until the disk has all lines that were added.
    pub(super) fn sync_waiting(&self, path: &Path) {
        // A file is stored before the next one is begun, so only the newest has lines that are not.
        if let Some(newest) = self.waiting.take_batch().pop() {
            self.sync(&newest, path);
        }
    }

    /// Waits until the disk has these lines.
    pub(super) fn sync(&self, lines: &WrittenLines, path: &Path) {
        match lines.file.sync_data() {
            Ok(()) => drop(self.synced.fetch_max(lines.last, Relaxed)),
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
