//! The runs of the whole gateway: requests that continue after the connection of their client is
//! lost.

use super::response::RunHead;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::resume::Registry;
use tokio::task::JoinSet;

/// All requests that continue after a lost connection of their client (runs), and their tasks.
#[derive(Default)]
pub struct Resumption {
    pub(super) registry: Arc<Registry<RunHead>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Resumption {
    /// The memory of the stored responses of all runs, in bytes.
    pub fn used_bytes(&self) -> usize {
        self.registry.used_bytes()
    }

    /// Ends the runs whose clients did not return in time.
    pub fn sweep(&self, now: Instant) {
        self.registry.sweep(now);
    }

    /// Ends all runs. Called when all connections have ended.
    pub async fn shutdown(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.shutdown().await;
    }

    /// Starts the task that handles the request of a run.
    pub(super) fn spawn(&self, run: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(run);
    }
}
