//! The queue and the thread of a sink of prompts and responses.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_gateway::telemetry::batch_worker::BatchWorkerGuard;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_protocol::clock;
use tokenweir_request::batch_queue::BatchQueue;
use tokio::sync::watch;

/// Queues the prompts and responses of requests for a thread that handles them. Requests that do
/// not fit into the queue are dropped and counted.
pub struct PayloadQueue<T> {
    jobs: Arc<BatchQueue<T>>,
    dropped: Arc<AtomicCounter>,
}

/// Guard of the thread that handles the queued prompts and responses. Dropping the guard waits
/// until the thread has handled the remaining requests. Requests that the thread has not begun to
/// handle within 1 s are dropped.
pub struct PayloadQueueGuard {
    /// Passes to the thread the instant from which it drops queued requests. `None` until the
    /// shutdown.
    shutdown_deadline: watch::Sender<Option<Instant>>,
    _worker: BatchWorkerGuard,
}

/// Capacity of the queue of prompts and responses, in requests.
const MAX_QUEUED_REQUESTS: usize = 256;
/// How long the first queued request waits for further requests before they are handled together.
const BATCH_LINGER: Duration = Duration::from_millis(50);
/// Time for the queued requests at shutdown. Requests that the thread has not begun to handle by then are
/// dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

impl<T: Send + 'static> PayloadQueue<T> {
    /// Starts the thread. The thread passes the prompts and responses of at most `batch_size`
    /// requests at a time to `handle`. If `handle` panics, the requests of this call are dropped,
    /// and the panic is counted for `task`. `shutdown_deadline` gets the instant from which queued
    /// requests are dropped.
    pub fn start(
        task: BackgroundTask,
        batch_size: usize,
        shutdown_deadline: watch::Sender<Option<Instant>>,
        mut handle: impl FnMut(&[T]) + Send + 'static,
    ) -> (Self, PayloadQueueGuard) {
        let queue = Self::without_thread(MAX_QUEUED_REQUESTS);
        let dropped = queue.dropped.clone();
        let deadline = shutdown_deadline.subscribe();
        let handle_batch = move |jobs: &BatchQueue<T>| {
            for jobs in jobs.take_batch().chunks(batch_size) {
                let is_late = deadline
                    .borrow()
                    .is_some_and(|deadline| clock::now() >= deadline);
                if is_late || supervise::catch_panic(task, || handle(jobs)).is_none() {
                    dropped.add(jobs.len() as u64);
                }
            }
        };
        let worker = BatchWorkerGuard::start(queue.jobs.clone(), Duration::MAX, handle_batch);
        (
            queue,
            PayloadQueueGuard {
                shutdown_deadline,
                _worker: worker,
            },
        )
    }

    /// Creates a queue for `capacity` requests, without a thread that handles them.
    pub fn without_thread(capacity: usize) -> Self {
        let jobs = Arc::new(BatchQueue::new(BATCH_LINGER, capacity));
        Self {
            jobs,
            dropped: Arc::default(),
        }
    }

    /// Queues the prompt and the response of a request. If the queue is full, they are dropped and
    /// counted.
    pub fn push(&self, job: T) {
        if self.jobs.push(job, 1).is_err() {
            self.dropped.add(1);
        }
    }

    /// Returns the number of requests that were dropped because the queue was full, because of the
    /// shutdown or because of a panic.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }
}

impl Drop for PayloadQueueGuard {
    /// Sets the deadline after which the thread drops queued requests. The field `_worker` is
    /// dropped after this call, and its drop waits until the thread has ended.
    fn drop(&mut self) {
        self.shutdown_deadline
            .send_replace(Some(clock::now() + SHUTDOWN_TIMEOUT));
    }
}
