//! The counters and the state of shared and persistent limits.

use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokenweir_protocol::mutex::lock;

/// The state of shared and persistent limits, for metrics and status.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SharedLimitsStatus {
    /// The state of the sharing. `None`: this gateway counts alone.
    pub store: Option<StoreStatus>,
    /// Number of times that the file was written.
    pub file_writes: u64,
    /// Number of times that the file could not be read or written.
    pub file_errors: u64,
    /// The newest error of the file. `None`: no error.
    pub file_error: Option<String>,
}

/// The state of the sharing of limits between gateways.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StoreStatus {
    /// The state of the server of the exchange: starting, connected, settling or away.
    pub state: &'static str,
    /// Number of gateways, including this one, at the last answer of the server.
    pub gateways: u64,
    /// Number of tenants, keys and models of tenants that hold grants or need one.
    pub active_subjects: usize,
    /// Claims that the server answered.
    pub answered_claims: u64,
    /// Claims that the server did not answer.
    pub failed_claims: u64,
    /// Number of times that the server had lost its data.
    pub lost_data: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) answered_claims: AtomicU64,
    pub(crate) failed_claims: AtomicU64,
    pub(crate) lost_data: AtomicU64,
    pub(crate) file_writes: AtomicU64,
    file_errors: AtomicU64,
    file_error: Mutex<Option<String>>,
    /// The state of the server and the numbers of gateways and of active subjects. `None`: no server is used.
    pub(crate) store: Mutex<Option<StoreStatus>>,
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl Counters {
    /// Counts an error of the file. Returns whether it differs from the previous error.
    pub(crate) fn on_file_error(&self, error: &str) -> bool {
        add(&self.file_errors, 1);
        let previous = lock(&self.file_error).replace(error.to_owned());
        previous.as_deref() != Some(error)
    }

    pub(crate) fn status(&self) -> SharedLimitsStatus {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let store = lock(&self.store).map(|store| StoreStatus {
            answered_claims: count(&self.answered_claims),
            failed_claims: count(&self.failed_claims),
            lost_data: count(&self.lost_data),
            ..store
        });
        SharedLimitsStatus {
            store,
            file_writes: count(&self.file_writes),
            file_errors: count(&self.file_errors),
            file_error: lock(&self.file_error).clone(),
        }
    }
}
