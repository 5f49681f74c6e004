//! The runs of the whole gateway: requests that continue after the connection of their client is
//! lost.

use arc_swap::ArcSwapOption;
use futures_util::future::BoxFuture;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokenweir_gateway::proxy::extensions::Extension;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::runs::{Registry, RunSettings};
use tokio::task::JoinSet;

/// The requests to whose responses clients can return after a lost connection (runs), and their tasks.
#[derive(Debug, Default)]
pub struct Resumption {
    /// The settings of the option. `None`: clients cannot return.
    pub(crate) settings: ArcSwapOption<RunSettings>,
    pub(crate) registry: Arc<Registry>,
    tasks: Mutex<JoinSet<()>>,
}

impl Resumption {
    /// The memory of the stored responses of all runs, in bytes.
    pub fn used_bytes(&self) -> usize {
        self.registry.used_bytes()
    }

    /// Starts the task that handles the request of a run.
    pub(crate) fn spawn(&self, run: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(run);
    }
}

impl Extension for Resumption {
    /// Ends the runs whose clients did not return in time.
    fn sweep(&self, now: Instant) {
        self.registry.sweep(now);
    }

    fn absent_requests(&self, client: IpAddr) -> usize {
        self.registry.absent_of(client)
    }

    /// Ends all runs.
    fn shutdown(&self) -> Option<BoxFuture<'_, ()>> {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        Some(Box::pin(async move { tasks.shutdown().await }))
    }
}
