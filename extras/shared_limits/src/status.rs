//! The counters and the state of limits over gateways and restarts.

use serde::Serialize;
use std::sync::Mutex;
use tokenweir_protocol::atomic::AtomicCounter;
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
    /// The newest error of the file. `None`: there was none.
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
    pub(crate) answered_claims: AtomicCounter,
    pub(crate) failed_claims: AtomicCounter,
    pub(crate) lost_data: AtomicCounter,
    pub(crate) file_writes: AtomicCounter,
    file_errors: AtomicCounter,
    file_error: Mutex<Option<String>>,
    /// The state of the server, the number of gateways and that of active subjects. `None`: no server is used.
    pub(crate) store: Mutex<Option<StoreStatus>>,
}

impl Counters {
    /// Counts an error of the file. Returns whether it is another one than before.
    pub(crate) fn on_file_error(&self, error: &str) -> bool {
        self.file_errors.add(1);
        let previous = lock(&self.file_error).replace(error.to_owned());
        previous.as_deref() != Some(error)
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
