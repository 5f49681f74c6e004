//! Background tasks that survive a panic. A panic is counted under the name of its task and logged;
//! then the task is started again after a pause. A task that cannot be started again is
//! [essential](Essential): its end is reported to the server, which drains and exits with an error.
//!
//! The counts are static because a panic is an event of the process, like its CPU time.

use futures_util::FutureExt;
use serde::Serialize;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokenweir_core::clock;
use tokio::task::JoinHandle;

/// A background task, by the name under which its panics are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Task {
    /// Accepts the connections of clients.
    Listener,
    /// Serves one connection of a client.
    Connection,
    /// Serves the admin port.
    AdminListener,
    /// Looks for streams that stall or are not read.
    StallSweep,
    /// Compares the memory of the process with its limit.
    MemoryWatch,
    /// Reads certificate files again.
    Certificates,
    /// Gives free places to requests in the queue.
    Admission,
    /// Logs how many requests a drain waits for.
    DrainProgress,
    /// Reads the configuration again.
    Reload,
    /// Tells the service manager that the process lives.
    SystemdWatchdog,
    /// Checks one backend and reads its metrics.
    HealthCheck,
    /// Asks one discovery source.
    Discovery,
    /// Diagnoses the backends.
    Diagnosis,
    /// Reads the file of API keys again.
    KeysFile,
    /// Pushes metrics to a collector.
    MetricPush,
    /// Exports spans to a collector.
    SpanExport,
    /// Hands the record of a request to one sink.
    RecordSink,
    /// Writes lines of the access log or of a capture.
    LogWriter,
    /// Redacts and writes texts of the content log.
    ContentLog,
    /// Redacts and judges samples of answers.
    QualitySamples,
}

/// Panics of each task, in the order of [`Task::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Panics(pub [u64; Task::ALL.len()]);

/// A task that is started again after a panic. Dropping it ends the task.
#[derive(Debug)]
pub struct Supervised(JoinHandle<()>);

/// A task that cannot be started again. Dropping it ends the task.
#[derive(Debug)]
pub struct Essential {
    task: Task,
    running: Supervised,
}

/// The pause before the first start after a panic. It doubles with each panic.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A task that ran for longer begins with the first pause again.
const STABLE: Duration = Duration::from_mins(5);

static PANICS: [AtomicU64; Task::ALL.len()] = [const { AtomicU64::new(0) }; Task::ALL.len()];

// === impl Task, Panics ===

impl Task {
    /// All tasks, in the order of their declaration.
    pub const ALL: [Self; 20] = [
        Self::Listener,
        Self::Connection,
        Self::AdminListener,
        Self::StallSweep,
        Self::MemoryWatch,
        Self::Certificates,
        Self::Admission,
        Self::DrainProgress,
        Self::Reload,
        Self::SystemdWatchdog,
        Self::HealthCheck,
        Self::Discovery,
        Self::Diagnosis,
        Self::KeysFile,
        Self::MetricPush,
        Self::SpanExport,
        Self::RecordSink,
        Self::LogWriter,
        Self::ContentLog,
        Self::QualitySamples,
    ];

    /// The name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Connection => "connection",
            Self::AdminListener => "admin_listener",
            Self::StallSweep => "stall_sweep",
            Self::MemoryWatch => "memory_watch",
            Self::Certificates => "certificates",
            Self::Admission => "admission",
            Self::DrainProgress => "drain_progress",
            Self::Reload => "reload",
            Self::SystemdWatchdog => "systemd_watchdog",
            Self::HealthCheck => "health_check",
            Self::Discovery => "discovery",
            Self::Diagnosis => "diagnosis",
            Self::KeysFile => "keys_file",
            Self::MetricPush => "metric_push",
            Self::SpanExport => "span_export",
            Self::RecordSink => "record_sink",
            Self::LogWriter => "log_writer",
            Self::ContentLog => "content_log",
            Self::QualitySamples => "quality_samples",
        }
    }
}

impl Panics {
    /// Panics since the start of the process.
    pub fn now() -> Self {
        Self(PANICS.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Panics of one task.
    pub fn of(&self, task: Task) -> u64 {
        self.0[task as usize]
    }
}

// === catching ===

/// Counts and logs a panic that was caught elsewhere.
pub fn report(task: Task) {
    PANICS[task as usize].fetch_add(1, Ordering::Relaxed);
    // The panic hook has logged where; the payload may quote a prompt or a key.
    tracing::error!(task = task.as_str(), "a background task panicked; the gateway goes on");
}

/// Does some work of a task. `None`: it panicked, which has been counted.
pub fn catch<R>(task: Task, work: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| report(task)).ok()
}

/// The same for work that waits.
pub async fn catch_async<R>(task: Task, work: impl Future<Output = R>) -> Option<R> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|_| report(task)).ok()
}

// === running ===

/// Runs a task, and starts it again whenever it panics. It ends when it returns. Must be called
/// inside a runtime.
pub fn spawn<R>(task: Task, mut start: impl FnMut() -> R + Send + 'static) -> Supervised
where
    R: Future<Output = ()> + Send,
{
    Supervised(tokio::spawn(async move {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = clock::now();
            if let Some(running) = catch(task, &mut start)
                && catch_async(task, running).await.is_some()
            {
                return;
            }
            if clock::now().saturating_duration_since(began) >= STABLE {
                pause = FIRST_PAUSE;
            }
            tokio::time::sleep_until((clock::now() + pause).into()).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }))
}

/// Runs a task that is to run until the process ends. Must be called inside a runtime.
pub fn essential(task: Task, running: impl Future<Output = ()> + Send + 'static) -> Essential {
    let running = async move {
        // Whether it panicked or returned, it has ended.
        let _ = catch_async(task, running).await;
    };
    Essential { task, running: Supervised(tokio::spawn(running)) }
}

// === impl Supervised, Essential ===

impl Supervised {
    /// Ends the task, and waits until all that it holds is dropped.
    pub async fn stop(mut self) {
        self.0.abort();
        // Its panics were caught inside; it was cancelled, or has ended.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Essential {
    /// Waits until the task has ended, which it must not. To be awaited to its end once at most.
    pub async fn ended(&mut self) -> Task {
        let _ = (&mut self.running.0).await;
        tracing::error!(
            task = self.task.as_str(),
            "the gateway cannot go on without this task: it drains and exits with an error"
        );
        self.task
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use tokenweir_core::clock;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_counted_and_started_again_after_longer_and_longer_pauses() {
        let (before, began) = (Panics::now().of(Task::Diagnosis), clock::now());
        let starts = Arc::new(AtomicUsize::new(0));
        let counted = starts.clone();
        let mut running = spawn(Task::Diagnosis, move || {
            let start = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                assert!(start >= 3, "the first three panic");
            }
        });
        (&mut running.0).await.unwrap();
        assert_eq!(starts.load(Ordering::SeqCst), 4);
        assert_eq!(Panics::now().of(Task::Diagnosis) - before, 3);
        assert_eq!((clock::now() - began).as_secs(), 1 + 2 + 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_was_stable_is_started_again_soon() {
        let began = clock::now();
        let mut starts = 0_u32;
        let mut running = spawn(Task::MemoryWatch, move || {
            starts += 1;
            let start = starts;
            async move {
                tokio::time::sleep(STABLE).await;
                assert!(start >= 10, "the first nine panic");
            }
        });
        (&mut running.0).await.unwrap();
        assert_eq!((clock::now() - began), STABLE * 10 + FIRST_PAUSE * 9);
    }

    #[tokio::test]
    async fn a_task_that_is_dropped_or_stopped_ends_and_drops_what_it_holds() {
        let held = Arc::new(());
        let waits_with = |held: Arc<()>| {
            spawn(Task::Admission, move || {
                let held = held.clone();
                async move {
                    std::future::pending::<()>().await;
                    drop(held);
                }
            })
        };
        waits_with(held.clone()).stop().await;
        assert_eq!(Arc::strong_count(&held), 1);
        drop(waits_with(held.clone()));
        while Arc::strong_count(&held) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_end_of_an_essential_task_is_reported_whether_it_panics_or_returns() {
        let before = Panics::now().of(Task::AdminListener);
        let mut panics = essential(Task::AdminListener, async { panic!("a defect") });
        assert_eq!(panics.ended().await, Task::AdminListener);
        assert_eq!(Panics::now().of(Task::AdminListener) - before, 1);
        let mut returns = essential(Task::AdminListener, async {});
        assert_eq!(returns.ended().await, Task::AdminListener);
        assert_eq!(Panics::now().of(Task::AdminListener) - before, 1);
    }

    #[test]
    fn every_task_has_a_name_of_its_own_and_its_place_in_the_list() {
        for (place, task) in Task::ALL.iter().enumerate() {
            assert_eq!(*task as usize, place);
            let same = Task::ALL.iter().filter(|other| other.as_str() == task.as_str());
            assert_eq!(same.count(), 1, "{task:?}");
        }
    }
}
