//! The last result of one discovery source, and its present problem.

use crate::config::BackendConfig;
use std::sync::Mutex;
use tokenweir_protocol::mutex::lock;
use tokio::sync::watch;

/// The last result of a discovery source. The default settings of its `discovery` entry have not been applied
/// yet.
pub(super) struct DiscoveredBackends {
    /// The discovered backends. `None`: the source has no result yet.
    backends: Mutex<Option<Vec<BackendConfig>>>,
    /// Why the source cannot be read now. `None`: the source can be read.
    problem: Mutex<Option<String>>,
    /// Signals each new result to [`DiscoverySources`](super::DiscoverySources).
    change_sender: watch::Sender<()>,
}

impl DiscoveredBackends {
    /// Creates the result of a source. `backends`: the result of an earlier task of the source. `None`: no
    /// result yet.
    pub(super) fn new(
        backends: Option<Vec<BackendConfig>>,
        change_sender: watch::Sender<()>,
    ) -> Self {
        Self {
            backends: Mutex::new(backends),
            problem: Mutex::default(),
            change_sender,
        }
    }

    pub(super) fn get(&self) -> Option<Vec<BackendConfig>> {
        lock(&self.backends).clone()
    }

    pub(super) fn set(&self, backends: Vec<BackendConfig>) {
        *lock(&self.backends) = Some(backends);
        self.set_problem(None);
    }

    pub(super) fn problem(&self) -> Option<String> {
        lock(&self.problem).clone()
    }

    pub(super) fn set_problem(&self, problem: Option<String>) {
        *lock(&self.problem) = problem;
        self.change_sender.send_replace(());
    }
}
