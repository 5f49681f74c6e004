//! The counters and the state of limits over gateways and restarts.

use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokenweir_protocol::mutex::lock;

/// The state of limits over gateways and restarts, for metrics and status.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SharedLimitsStatus {
    /// How the gateways share limits. `None`: this gateway counts by itself.
    pub store: Option<StoreStatus>,
    /// Number of times that the file was written.
    pub file_writes: u64,
    /// Number of times that the file could not be read or written.
    pub file_errors: u64,
    /// Why the file could not be read or written the last time. `None`: it could.
    pub file_error: Option<String>,
}

/// How the gateways share limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StoreStatus {
    /// What the server of the exchange is: starting, connected, settling or away.
    pub state: &'static str,
    /// Number of gateways, with this one, when the server last answered.
    pub gateways: u64,
    /// Number of tenants, keys and models of tenants that hold grants or need some.
    pub active_subjects: usize,
    /// Claims that the server answered.
    pub answered_claims: u64,
    /// Claims that the server did not answer.
    pub failed_claims: u64,
    /// Number of times that the server was found without data.
    pub lost_data: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) answered_claims: AtomicU64,
    pub(crate) failed_claims: AtomicU64,
    pub(crate) lost_data: AtomicU64,
    file_writes: AtomicU64,
    file_errors: AtomicU64,
    file_error: Mutex<Option<String>>,
    /// The state of the server, the number of gateways and that of active subjects. `None`: no server is used.
    pub(crate) store: Mutex<Option<StoreStatus>>,
}

/// Adds `count` to a counter.
pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl Counters {
    /// Counts an error of the file. Returns whether it is another one than before.
    pub(crate) fn on_file_error(&self, error: &str) -> bool {
        add(&self.file_errors, 1);
        let previous = lock(&self.file_error).replace(error.to_owned());
        previous.as_deref() != Some(error)
    }

    pub(crate) fn on_file_write(&self) {
        add(&self.file_writes, 1);
        *lock(&self.file_error) = None;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_ends_the_error_of_the_file() {
        let counters = Counters::default();
        assert!(counters.on_file_error("full"));
        assert!(!counters.on_file_error("full"), "it is logged once");
        assert_eq!(counters.status().file_error.as_deref(), Some("full"));
        counters.on_file_write();
        assert_eq!(counters.status().file_error, None);
        assert!(counters.on_file_error("full"), "it is logged again");
        assert_eq!(counters.status().file_errors, 3);
    }
}
