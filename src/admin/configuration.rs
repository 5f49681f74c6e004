//! The active configuration as `/config` shows it, and the channel for reload requests.

use arc_swap::{ArcSwap, ArcSwapOption};
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tokenweir_gateway::status::ConfigReloadStatus;
use tokenweir_protocol::mutex::lock;
use tokio::sync::{mpsc, oneshot};

/// The active configuration without secrets, and the counts of reloads.
pub struct ActiveConfiguration {
    /// The JSON document of `/config`.
    view: ArcSwap<Value>,
    reloads: Mutex<ConfigReloadStatus>,
    /// Why the last reload failed. `None`: the last reload succeeded.
    reload_problem: ArcSwapOption<String>,
    /// Why a discovery file cannot be used. `None`: all discovery files can be used.
    discovery_problem: ArcSwapOption<String>,
    reload_requests: mpsc::Sender<ReloadRequest>,
}

/// A request to reload the configuration. The channel returns the result: a summary of the changes, or the
/// problem.
#[derive(Debug)]
pub struct ReloadRequest(oneshot::Sender<Result<String, String>>);

/// The receiver of reload requests. Reload requests fail after it is dropped.
pub type ReloadRequests = mpsc::Receiver<ReloadRequest>;

/// Capacity of the channel of reload requests. Each request causes its own reload. While the channel is full,
/// further requests wait.
const MAX_PENDING_RELOADS: usize = 16;

impl ActiveConfiguration {
    /// Creates the state at the start of the gateway, at `now`. `view` is the JSON document of
    /// `/config`: the configuration with the source of each value and without secrets. Also returns the
    /// receiver of reload requests.
    pub fn new(view: Value, now: SystemTime) -> (Arc<Self>, ReloadRequests) {
        let (requests, receiver) = mpsc::channel(MAX_PENDING_RELOADS);
        let active = Self {
            view: ArcSwap::from_pointee(view),
            reloads: Mutex::new(ConfigReloadStatus::initial(now)),
            reload_problem: ArcSwapOption::empty(),
            discovery_problem: ArcSwapOption::empty(),
            reload_requests: requests,
        };
        (Arc::new(active), receiver)
    }

    /// The JSON document of `/config`.
    pub fn view(&self) -> Arc<Value> {
        self.view.load_full()
    }

    /// Replaces the document of `/config` and counts a successful reload at `now`.
    pub fn replace(&self, view: Value, now: SystemTime) {
        self.view.store(Arc::new(view));
        self.reload_problem.store(None);
        lock(&self.reloads).record_success(now);
    }

    /// Counts a reload that failed because of `problem`. The previous configuration stays active.
    pub fn record_failed_reload(&self, problem: &str) {
        self.reload_problem
            .store(Some(Arc::new(problem.to_owned())));
        lock(&self.reloads).failed();
    }

    /// Returns the result of the last reload, and the counts of reloads.
    pub fn reloads(&self) -> ConfigReloadStatus {
        *lock(&self.reloads)
    }

    /// Why the last reload failed, or why a discovery file cannot be used. `None`: the last reload
    /// succeeded, and all discovery files can be used.
    pub fn reload_problem(&self) -> Option<Arc<String>> {
        self.reload_problem
            .load_full()
            .or_else(|| self.discovery_problem.load_full())
    }

    /// Stores why a discovery file cannot be used. `None`: all discovery files can be used.
    pub fn set_discovery_problem(&self, problem: Option<String>) {
        self.discovery_problem.store(problem.map(Arc::new));
    }

    /// Requests a reload and waits for its result: a summary of the changes, or the problem.
    pub async fn request_reload(&self) -> Result<String, String> {
        let (result_sender, result) = oneshot::channel();
        let sent = self
            .reload_requests
            .send(ReloadRequest(result_sender))
            .await;
        let unavailable = || Err("the gateway shuts down and does not reload".to_owned());
        if sent.is_err() {
            return unavailable();
        }
        result.await.unwrap_or_else(|_| unavailable())
    }
}

impl ReloadRequest {
    /// Sends the result of the reload to the handler of the admin request. If the client of the admin listener
    /// has disconnected, the result is discarded.
    pub fn respond(self, result: Result<String, String>) {
        let _ = self.0.send(result);
    }
}
