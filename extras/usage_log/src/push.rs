//! Pushes the events of the usage log to a receiver: `CloudEvents` in the JSON batch format over HTTP. The file
//! serves as the queue: each event is pushed until the receiver acknowledges it with a success status.

use super::counters::UsageCounters;
use super::event_reader::{EventBatch, EventReader};
use std::panic;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokenweir_net::client::receiver::{Receiver, ReceiverClient};
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_protocol::mutex::lock;
use tokio::{task, time};

/// Writes the usage log or pushes its events.
pub const TASK: BackgroundTask = BackgroundTask::new("usage_log");

struct UsagePush {
    client: ReceiverClient,
    file: PathBuf,
    counters: Arc<UsageCounters>,
}

const CONTENT_TYPE: &str = "application/cloudevents-batch+json";
/// Pause at the end of the file before the next read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after the first refusal of a batch. It doubles with each further refusal.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_mins(1);

/// Starts the push of the events in `file`. Must be called inside a Tokio runtime.
pub(super) fn start(
    receiver: Receiver,
    file: PathBuf,
    counters: Arc<UsageCounters>,
) -> SupervisedTask {
    let push = Arc::new(UsagePush {
        client: ReceiverClient::new(receiver),
        file,
        counters,
    });
    supervise::spawn(TASK, move || push.clone().run())
}

impl UsagePush {
    async fn run(self: Arc<Self>) {
        // Until this process has locked the state file, another process pushes the events.
        while self.counters.state.get().is_none() {
            time::sleep(POLL_INTERVAL).await;
        }
        let mut reader = EventReader::new(&self.file, self.counters.acknowledged.load(Relaxed));
        loop {
            let until = self.counters.disk.synced.get();
            let read = task::spawn_blocking(move || {
                let batch = reader.read_batch(until);
                (reader, batch)
            });
            let batch;
            (reader, batch) = match read.await {
                Ok(read) => read,
                Err(error) => panic::resume_unwind(error.into_panic()),
            };
            match batch {
                Ok(Some(batch)) => self.deliver(batch).await,
                Ok(None) => time::sleep(POLL_INTERVAL).await,
                Err(error) => {
                    self.on_result(Err(format!("the file cannot be read: {error}")));
                    time::sleep(MAX_PAUSE).await;
                }
            }
        }
    }

    /// Posts a batch repeatedly until the receiver accepts it.
    async fn deliver(&self, batch: EventBatch) {
        let EventBatch {
            body,
            series,
            last,
            expired,
        } = batch;
        if expired > 0 {
            self.counters.gaps_expired.add(1);
            tracing::error!(
                events = expired,
                "events of the usage log were removed before the push"
            );
        }
        let mut pause = FIRST_PAUSE;
        loop {
            let result = self.client.post(CONTENT_TYPE, body.clone()).await;
            let is_accepted = result.is_ok();
            self.on_result(result);
            if is_accepted {
                break;
            }
            time::sleep(pause).await;
            pause = (2 * pause).min(MAX_PAUSE);
        }
        self.counters.acknowledged.store(last, Relaxed);
        let state = self.counters.state.get();
        if let Some(Err(error)) = state.map(|state| state.acknowledge(&series, last)) {
            tracing::warn!(%error, "the state of the usage log is not stored: a restart repeats events");
        }
    }

    /// Logs the first of several consecutive failures, and the first success after a failure.
    fn on_result(&self, result: Result<(), String>) {
        let error = result.err();
        let previous = std::mem::replace(&mut *lock(&self.counters.push_error), error.clone());
        match (previous, error) {
            (None, Some(error)) => {
                tracing::warn!(
                    error,
                    "the receiver of the usage log accepts no events: trying again"
                );
            }
            (Some(_), None) => tracing::info!("the receiver of the usage log accepts events again"),
            _ => {}
        }
    }
}
