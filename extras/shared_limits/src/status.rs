//! The counters and the state of shared and persistent limits.

use serde::Serialize;
use std::sync::Mutex;
use tokenweir_protocol::atomic::AtomicCounter;
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
    /// The error of the last read or write of the file. `None`: the last one succeeded.
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
    pub(crate) answered_claims: AtomicCounter,
    pub(crate) failed_claims: AtomicCounter,
    pub(crate) lost_data: AtomicCounter,
    file_writes: AtomicCounter,
    file_errors: AtomicCounter,
    file_error: Mutex<Option<String>>,
    /// The state of the server and the numbers of gateways and of active subjects. `None`: no server is used.
    pub(crate) store: Mutex<Option<StoreStatus>>,
}

impl Counters {
    /// Counts an error of the file. Returns whether it differs from the previous error.
    pub(crate) fn on_file_error(&self, error: &str) -> bool {
        self.file_errors.add(1);
        let previous = lock(&self.file_error).replace(error.to_owned());
        previous.as_deref() != Some(error)
    }

    pub(crate) fn on_file_write(&self) {
        self.file_writes.add(1);
        *lock(&self.file_error) = None;
    }

    pub(crate) fn status(&self) -> SharedLimitsStatus {
        let store = lock(&self.store).map(|store| StoreStatus {
            answered_claims: self.answered_claims.get(),
            failed_claims: self.failed_claims.get(),
            lost_data: self.lost_data.get(),
            ..store
        });
        SharedLimitsStatus {
            store,
            file_writes: self.file_writes.get(),
            file_errors: self.file_errors.get(),
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
