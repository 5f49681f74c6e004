//! The numbers of records, gaps and acknowledged events. The file, the push and the metrics share them.

use super::disk_sync::DiskSync;
use super::state_file::StateFile;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_protocol::mutex::lock;

/// The numbers of one usage log since its start.
#[derive(Debug, Default)]
pub(super) struct UsageCounters {
    pub(super) written: AtomicCounter,
    pub(super) lost: AtomicCounter,
    /// The number of lost records for which the file has no gap event yet.
    pub(super) unstated: AtomicCounter,
    pub(super) gaps_lost: AtomicCounter,
    pub(super) gaps_unclean_stop: AtomicCounter,
    pub(super) gaps_expired: AtomicCounter,
    /// Number of the last line that the receiver has acknowledged.
    pub(super) acknowledged: AtomicU64,
    pub(super) disk: Arc<DiskSync>,
    /// Why the receiver does not accept events. `None`: it accepts them.
    pub(super) push_error: Mutex<Option<String>>,
    /// The state file. Empty until this process owns the file.
    pub(super) state: OnceLock<Arc<StateFile>>,
}

/// The state of the usage log. The default is that of a gateway without a usage log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UsageLogStatus {
    /// Records that were written to the file.
    pub written: u64,
    /// Number of records that were lost because the file could not be written and the queue was full.
    pub lost: u64,
    /// Number of gaps by cause.
    pub gaps: UsageGaps,
    /// Events that the receiver has not acknowledged yet. 0: there is no receiver.
    pub unacknowledged: u64,
    /// Why the receiver does not accept events. `None`: it accepts them, or there is no receiver.
    pub push_error: Option<String>,
}

/// Numbers of gaps in the usage log, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct UsageGaps {
    /// Records were lost: the file could not be written for so long that the queue was full.
    pub lost: u64,
    /// The gateway did not stop cleanly. Requests that were open, or had ended just before, have no record.
    pub unclean_stop: u64,
    /// Events were removed with the rotated file before the receiver acknowledged them.
    pub expired: u64,
}

impl UsageCounters {
    pub(super) fn on_lost(&self, records: u64) {
        self.lost.add(records);
        self.unstated.add(records);
    }

    /// Whether the receiver accepts events and does not have all of them.
    pub(super) fn is_pushing(&self) -> bool {
        let has_all = self.acknowledged.load(Relaxed) >= self.disk.synced.get();
        !has_all && lock(&self.push_error).is_none()
    }

    pub(super) fn status(&self, is_pushed: bool) -> UsageLogStatus {
        let waiting = self
            .disk
            .synced
            .get()
            .saturating_sub(self.acknowledged.load(Relaxed));
        UsageLogStatus {
            written: self.written.get(),
            lost: self.lost.get(),
            gaps: UsageGaps {
                lost: self.gaps_lost.get(),
                unclean_stop: self.gaps_unclean_stop.get(),
                expired: self.gaps_expired.get(),
            },
            unacknowledged: if is_pushed { waiting } else { 0 },
            push_error: lock(&self.push_error).clone(),
        }
    }
}
