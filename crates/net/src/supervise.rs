//! Runs background tasks and restarts them after a panic.
//!
//! A panic is logged and counted under the name of its task. The task restarts after a delay. A task that
//! cannot be restarted is spawned with [`spawn_once`], and its owner waits for its end. The panic counts are
//! static, because they belong to the process, which can contain several gateways.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;
use tokio::task::JoinHandle;

/// A kind of background task, or a part of a request in which panics are caught. Panics are counted for each
/// name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackgroundTask(&'static str);

/// A task whose panics are caught. Dropping this value aborts the task.
#[derive(Debug)]
pub struct SupervisedTask(JoinHandle<()>);

/// Delay before the first restart after a panic. It doubles with each further panic.
const INITIAL_RESTART_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay before a restart.
const MAX_RESTART_DELAY: Duration = Duration::from_secs(30);
/// After this time without a panic, the next restart delay is [`INITIAL_RESTART_DELAY`] again.
const BACKOFF_RESET_AFTER: Duration = Duration::from_mins(5);

/// Number of panics whose times are stored.
const MAX_RECENT_PANICS: usize = 256;

static RECENT_PANICS: Mutex<VecDeque<(BackgroundTask, Instant)>> = Mutex::new(VecDeque::new());

/// Number of panics of each task since the start of the process. Tasks without a panic have no entry.
static PANIC_COUNTS: Mutex<BTreeMap<BackgroundTask, u64>> = Mutex::new(BTreeMap::new());

impl BackgroundTask {
    /// Accepts client connections.
    pub const LISTENER: Self = Self::new("listener");
    /// Serves one client connection.
    pub const CONNECTION: Self = Self::new("connection");
    /// Accepts and serves connections of the admin listener.
    pub const ADMIN_LISTENER: Self = Self::new("admin_listener");
    /// Handles one request. A panic ends only this request.
    pub const REQUEST: Self = Self::new("request");
    /// Estimates the load of one backend for routing.
    pub const ROUTING: Self = Self::new("routing");
    /// Finds streams that stall and streams that the client does not read.
    pub const STALL_SWEEP: Self = Self::new("stall_sweep");
    /// Compares the memory of the process with its limit.
    pub const MEMORY_WATCH: Self = Self::new("memory_watch");
    /// Reloads certificate files.
    pub const CERTIFICATES: Self = Self::new("certificates");
    /// Assigns free capacity of backends to requests in the admission queue.
    pub const ADMISSION: Self = Self::new("admission");
    /// Logs during a shutdown how many open requests the gateway still waits for.
    pub const DRAIN_PROGRESS: Self = Self::new("drain_progress");
    /// Waits for reloads and applies them.
    pub const RELOAD: Self = Self::new("reload");
    /// Sends keep-alive notifications to systemd.
    pub const SYSTEMD_WATCHDOG: Self = Self::new("systemd_watchdog");
    /// Checks the health of one backend and scrapes its metrics.
    pub const HEALTH_CHECK: Self = Self::new("health_check");
    /// Runs one source that discovers backends.
    pub const DISCOVERY: Self = Self::new("discovery");
    /// Diagnoses the backends.
    pub const DIAGNOSIS: Self = Self::new("diagnosis");
    /// Reloads the file of API keys.
    pub const KEYS_FILE: Self = Self::new("keys_file");
    /// Exports spans to a collector.
    pub const SPAN_EXPORT: Self = Self::new("span_export");
    /// Passes the record of a request to one sink.
    pub const RECORD_SINK: Self = Self::new("record_sink");
    /// Writes lines of the access log or of a trace capture.
    pub const LOG_WRITER: Self = Self::new("log_writer");

    /// A kind of background task. `name`: its name in metrics and logs.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// Number of panics since the start of the process.
    pub fn panics(self) -> u64 {
        lock(&PANIC_COUNTS).get(&self).copied().unwrap_or(0)
    }
}

/// The number of panics of each of `tasks` since `since`, without tasks that did not panic.
pub fn panics_since(since: Instant, tasks: &[BackgroundTask]) -> Vec<(BackgroundTask, usize)> {
    let recent = lock(&RECENT_PANICS);
    let count = |task: BackgroundTask| {
        recent
            .iter()
            .filter(|(other, at)| *other == task && *at >= since)
            .count()
    };
    let counts = tasks.iter().map(|task| (*task, count(*task)));
    counts.filter(|(_, count)| *count > 0).collect()
}

// === catch panics ===

/// Counts and logs a panic that the caller has caught.
pub fn record_panic(task: BackgroundTask) {
    *lock(&PANIC_COUNTS).entry(task).or_default() += 1;
    push_bounded(
        &mut lock(&RECENT_PANICS),
        (task, clock::now()),
        MAX_RECENT_PANICS,
    );
    // The panic payload may contain a prompt or a key, so the message does not include it. The panic hook has
    // already logged the location.
    tracing::error!(
        task = task.as_str(),
        "a panic was caught: the gateway continues"
    );
}

/// Runs `work` and catches, counts and logs a panic. `None`: `work` panicked.
pub fn catch_panic<R>(task: BackgroundTask, work: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|_| record_panic(task))
        .ok()
}

/// Runs the future `work` and catches, counts and logs a panic. `None`: `work` panicked.
pub async fn catch_panic_async<R>(
    task: BackgroundTask,
    work: impl Future<Output = R>,
) -> Option<R> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .map_err(|_| record_panic(task))
        .ok()
}

// === run tasks ===

/// Spawns a task that runs the future from `start`. After a panic and a delay, calls `start` again. The task
/// ends when its future returns. Must be called inside a Tokio runtime.
pub fn spawn<R>(
    task: BackgroundTask,
    mut start: impl FnMut() -> R + Send + 'static,
) -> SupervisedTask
where
    R: Future<Output = ()> + Send + 'static,
{
    let start = Box::new(move || start().boxed());
    SupervisedTask(tokio::spawn(run_supervised(task, start)))
}

/// Runs the future from `start`, and again after each panic, until the future returns. The futures
/// are boxed, because each type of a spawned future adds 1,500 lines of LLVM code to the build.
async fn run_supervised(
    task: BackgroundTask,
    mut start: Box<dyn FnMut() -> BoxFuture<'static, ()> + Send>,
) {
    let mut delay = INITIAL_RESTART_DELAY;
    loop {
        let start_time = clock::now();
        if let Some(future) = catch_panic(task, &mut start)
            && catch_panic_async(task, future).await.is_some()
        {
            return;
        }
        if clock::now().saturating_duration_since(start_time) >= BACKOFF_RESET_AFTER {
            delay = INITIAL_RESTART_DELAY;
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(MAX_RESTART_DELAY);
    }
}

/// Spawns a task that is not restarted. Must be called inside a Tokio runtime.
pub fn spawn_once(
    task: BackgroundTask,
    future: impl Future<Output = ()> + Send + 'static,
) -> SupervisedTask {
    // A return and a caught panic both end the task, so the result does not matter.
    SupervisedTask(tokio::spawn(
        catch_panic_async(task, future).map(|_| ()).boxed(),
    ))
}

impl SupervisedTask {
    /// Aborts the task and waits until its future is dropped.
    pub async fn stop(mut self) {
        self.0.abort();
        self.wait_for_end().await;
    }

    /// Waits until the task ends. Must not be called again after it returned.
    pub async fn wait_for_end(&mut self) {
        // Panics are caught inside the task, so the result is an abort or a normal end.
        let _ = (&mut self.0).await;
    }
}

impl Drop for SupervisedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokenweir_protocol::clock;

    #[tokio::test(start_paused = true)]
    async fn a_panicking_task_is_counted_and_restarted() {
        let before = BackgroundTask::DIAGNOSIS.panics();
        let start_time = clock::now();
        let starts = Arc::new(AtomicUsize::new(0));
        let start_counter = starts.clone();
        let mut running = spawn(BackgroundTask::DIAGNOSIS, move || {
            let start = start_counter.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                assert!(start >= 3, "the first three panic");
            }
        });
        (&mut running.0).await.unwrap();
        assert_eq!(starts.load(Ordering::SeqCst), 4);
        assert_eq!(BackgroundTask::DIAGNOSIS.panics() - before, 3);
        assert_eq!((clock::now() - start_time).as_secs(), 1 + 2 + 4);
    }

    #[tokio::test(start_paused = true)]
    async fn the_restart_delay_shrinks_after_quiet_time() {
        let start_time = clock::now();
        let mut starts = 0_u32;
        let mut running = spawn(BackgroundTask::MEMORY_WATCH, move || {
            starts += 1;
            let start = starts;
            async move {
                tokio::time::sleep(BACKOFF_RESET_AFTER).await;
                assert!(start >= 10, "the first nine panic");
            }
        });
        (&mut running.0).await.unwrap();
        assert_eq!(
            (clock::now() - start_time),
            BACKOFF_RESET_AFTER * 10 + INITIAL_RESTART_DELAY * 9
        );
    }

    #[tokio::test]
    async fn a_dropped_or_stopped_task_drops_its_state() {
        let state = Arc::new(());
        let spawn_with = |state: Arc<()>| {
            spawn(BackgroundTask::ADMISSION, move || {
                let state = state.clone();
                async move {
                    std::future::pending::<()>().await;
                    drop(state);
                }
            })
        };
        spawn_with(state.clone()).stop().await;
        assert_eq!(Arc::strong_count(&state), 1);
        drop(spawn_with(state.clone()));
        while Arc::strong_count(&state) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_end_of_an_unrestarted_task_is_reported() {
        let before = BackgroundTask::ADMIN_LISTENER.panics();
        spawn_once(BackgroundTask::ADMIN_LISTENER, async { panic!("a defect") })
            .wait_for_end()
            .await;
        assert_eq!(BackgroundTask::ADMIN_LISTENER.panics() - before, 1);
        spawn_once(BackgroundTask::ADMIN_LISTENER, async {})
            .wait_for_end()
            .await;
        assert_eq!(BackgroundTask::ADMIN_LISTENER.panics() - before, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn recent_panics_are_counted_by_background_task() {
        assert_eq!(
            catch_panic(BackgroundTask::ROUTING, || -> u32 { panic!("a defect") }),
            None
        );
        let since = clock::now();
        let count = |since| {
            let panics = panics_since(since, &[BackgroundTask::ROUTING]);
            panics
                .iter()
                .find(|(task, _)| *task == BackgroundTask::ROUTING)
                .map(|(_, count)| *count)
        };
        assert_eq!(count(since), Some(1));
        assert_eq!(count(since + Duration::from_secs(1)), None);
    }
}
