//! The keeper of the fleet: it has a watcher at every replica, and at no other. A replica that is
//! to come is looked at before it is in the fleet, so that it can be chosen at once.

use super::Backend;
use super::pool::Pool;
use super::roster::Selection;
use super::watch::{self, Settings, Tally};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::client::Client;
use tokenweir_net::supervise::{self, Supervised, Task};

/// The keeper. Its watchers end with it.
pub struct Keeper {
    pool: Arc<Pool>,
    client: Client,
    settings: Settings,
    tally: Arc<dyn Tally>,
    watched: Vec<Watched>,
}

/// A backend with its health check, which ends when this is dropped.
struct Watched {
    backend: Arc<Backend>,
    _checking: Supervised,
}

// === impl Keeper ===

impl Keeper {
    /// Begins to watch the fleet. Must be called inside a runtime.
    pub fn new(pool: Arc<Pool>, client: Client, settings: Settings, tally: Arc<dyn Tally>) -> Self {
        let mut keeper = Self { pool, client, settings, tally, watched: Vec::new() };
        keeper.watch_fleet();
        keeper
    }

    /// Waits until each replica has been looked at or `patience` is over: one that is slow to
    /// answer joins when it does.
    pub async fn seen(&self, patience: Duration) {
        let seen = async {
            for watched in &self.watched {
                watched.backend.seen().await;
            }
        };
        let _ = tokio::time::timeout(patience, seen).await;
    }

    /// Makes these replicas the fleet, when those that come have been looked at, or `patience` is
    /// over.
    pub async fn change(
        &mut self,
        backends: Vec<Backend>,
        selection: &Selection,
        patience: Duration,
    ) {
        let change = self.pool.plan(backends);
        let newcomers: Vec<Arc<Backend>> = change.newcomers().cloned().collect();
        for newcomer in newcomers {
            self.watch(newcomer);
        }
        self.seen(patience).await;
        self.pool.change(change, selection);
        let fleet = self.pool.backends();
        let is_there =
            |backend: &Arc<Backend>| fleet.iter().any(|other| Arc::ptr_eq(other, backend));
        self.watched.retain(|watched| is_there(&watched.backend));
    }

    /// Watches with another client and other settings from now on.
    pub fn set(&mut self, client: Client, settings: Settings) {
        self.client = client;
        self.settings = settings;
        self.watched.clear();
        self.watch_fleet();
    }

    fn watch_fleet(&mut self) {
        for backend in self.pool.backends().iter() {
            self.watch(backend.clone());
        }
    }

    fn watch(&mut self, backend: Arc<Backend>) {
        let (client, settings, tally) = (self.client.clone(), self.settings, self.tally.clone());
        let checked = backend.clone();
        let check = move || watch::watch(checked.clone(), client.clone(), settings, tally.clone());
        let checking = supervise::spawn(Task::HealthCheck, check);
        self.watched.push(Watched { backend, _checking: checking });
    }
}
