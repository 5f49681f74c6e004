//! The configuration in force as operators see it, and the way to have it read again.

use crate::telemetry::vitals::Reloads;
use arc_swap::ArcSwap;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::sync::{mpsc, oneshot};

/// The configuration in force.
pub struct Configuration {
    view: ArcSwap<Value>,
    reloads: Mutex<Reloads>,
    requests: mpsc::Sender<Request>,
}

/// Whoever asked for the configuration to be read again, and waits for what comes of it.
#[derive(Debug)]
pub struct Request(oneshot::Sender<Result<String, String>>);

/// Those who ask. While nobody receives, nobody is answered.
pub type Requests = mpsc::Receiver<Request>;

/// Most that wait at once; it is read once for all of them.
const WAITING: usize = 16;

// === impl Configuration ===

impl Configuration {
    /// The configuration with which the gateway starts at `now`, with the source of each value and
    /// without secrets.
    pub fn new(view: Value, now: SystemTime) -> (Arc<Self>, Requests) {
        let (requests, receiver) = mpsc::channel(WAITING);
        let view = ArcSwap::from_pointee(view);
        let reloads = Mutex::new(Reloads::begun(now));
        (Arc::new(Self { view, reloads, requests }), receiver)
    }

    /// As it is shown.
    pub fn view(&self) -> Arc<Value> {
        self.view.load_full()
    }

    /// Another one holds from `now` on.
    pub fn replace(&self, view: Value, now: SystemTime) {
        self.view.store(Arc::new(view));
        self.count(|reloads| reloads.succeeded(now));
    }

    /// It was read again, and there is a mistake in it: the one before holds on.
    pub fn failed(&self) {
        self.count(Reloads::failed);
    }

    /// How it went.
    pub fn reloads(&self) -> Reloads {
        *self.reloads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it read again. What has changed, or why nothing has.
    pub async fn reload(&self) -> Result<String, String> {
        let (answer, answered) = oneshot::channel();
        let asked = self.requests.send(Request(answer)).await;
        let nobody = || Err("this gateway does not read its configuration again".to_owned());
        if asked.is_err() {
            return nobody();
        }
        answered.await.unwrap_or_else(|_| nobody())
    }

    fn count(&self, change: impl FnOnce(&mut Reloads)) {
        change(&mut self.reloads.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

// === impl Request ===

impl Request {
    /// Tells what came of it. Whoever asked may be gone.
    pub fn answer(self, result: Result<String, String>) {
        let _ = self.0.send(result);
    }
}
