//! Quality monitoring: measures the lengths, the model refusals and the judge's scores of responses
//! by model, so that a change of a model becomes visible. It is disabled by default. Prompts and
//! responses are sampled only if a file or a judge is configured.
//!
//! ```text
//! finished ─┬► trends: recent mean ÷ baseline mean ─► metrics
//!           └► bounded queue ─► thread: redaction as in the payload log ─► judge ─► file
//! ```

mod judge;
mod model_trends;
mod sample;
mod settings;
#[cfg(test)]
mod tests;
mod trend;
mod worker;

pub use model_trends::ModelQuality;
pub use sample::QualitySampleCounts;
pub use settings::QualitySettings;

use super::batch_worker::BatchWorkerGuard;
use super::payload_log::{self, PayloadSinkStartError};
use super::rotating_file::RotatingFile;
use judge::QualityJudge;
use model_trends::QualityTrends;
use sample::{QualityJob, QualitySampleCounters};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Api;
use tokenweir_request::batch_queue::BatchQueue;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{Outcome, RequestRecord};
use tokio::sync::watch;
use worker::QualityWorker;

/// The sink that updates the quality trends and queues samples for the worker thread.
pub struct QualityMonitor {
    trends: Arc<QualityTrends>,
    /// The queue of the worker thread that gets the sampled texts. `None`: no file and no judge are
    /// configured, so no texts are sampled.
    job_queue: Option<Arc<BatchQueue<QualityJob>>>,
    counters: Arc<QualitySampleCounters>,
}

/// Guard of the worker thread. Dropping the guard waits until the thread has processed the remaining samples.
/// Samples that the thread has not begun to process within 1 s are dropped.
pub struct QualityMonitorGuard {
    /// Sends the shutdown deadline to the worker thread and to the judge client.
    deadline_sender: watch::Sender<Option<Instant>>,
    _worker: BatchWorkerGuard,
}

/// A snapshot of the quality of responses by model, and of the numbers of samples.
#[derive(Debug, Clone, Default, Serialize)]
pub struct QualitySnapshot {
    /// The quality of all models that had a response recently.
    pub models: Vec<ModelQuality>,
    /// Number of samples by result.
    pub samples: QualitySampleCounts,
}

/// Capacity of the queue, in samples. If the queue is full, further samples are dropped and
/// counted.
const MAX_QUEUED_SAMPLES: usize = 256;
/// How long the first queued sample waits for further samples before they are processed together.
const BATCH_LINGER: Duration = Duration::from_millis(50);
/// Time for the queued samples at shutdown. Samples that the worker thread has not begun to process by then
/// are dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

// === impl QualityMonitor ===

impl QualityMonitor {
    /// Starts quality monitoring. Prompts and responses are redacted with `payload_settings`. The
    /// result is `None` if quality monitoring is disabled. The guard is `None` if no texts are sampled,
    /// because there is no worker thread then.
    pub fn start(
        settings: &QualitySettings,
        payload_settings: &payload_log::PayloadLogSettings,
        max_file_bytes: u64,
    ) -> Result<Option<(Self, Option<QualityMonitorGuard>)>, PayloadSinkStartError> {
        if !settings.enabled {
            return Ok(None);
        }
        let trends = Arc::new(QualityTrends::new(settings.window, settings.baseline_window()));
        let counters = Arc::new(QualitySampleCounters::default());
        if settings.share() <= 0.0 {
            return Ok(Some((Self { trends, job_queue: None, counters }, None)));
        }
        let (deadline_sender, deadline) = watch::channel(None);
        let open_file =
            |path| RotatingFile::open(path, max_file_bytes / 2, counters.file_counters.clone());
        let create_judge =
            |url: &String| QualityJudge::new(url, settings.judge_timeout, deadline.clone());
        let mut worker = QualityWorker {
            payload_settings: payload_settings.clone(),
            file: settings.file.as_deref().map(open_file).transpose()?,
            judge: settings.judge.as_ref().map(create_judge).transpose()?,
            trends: trends.clone(),
            counters: counters.clone(),
            shutdown_deadline: deadline,
        };
        let job_queue = Arc::new(BatchQueue::new(BATCH_LINGER, MAX_QUEUED_SAMPLES));
        let process = move |queue: &_| worker.process_queued(queue);
        let worker = BatchWorkerGuard::start(job_queue.clone(), Duration::MAX, process);
        let guard = QualityMonitorGuard { deadline_sender, _worker: worker };
        Ok(Some((Self { trends, job_queue: Some(job_queue), counters }, Some(guard))))
    }

    /// A snapshot of the quality of responses and of the numbers of samples at `now`.
    pub fn vitals(&self, now: Instant) -> QualitySnapshot {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let QualitySampleCounters { done, dropped, judge_failed, file_counters } = &*self.counters;
        QualitySnapshot {
            models: self.trends.snapshot(now),
            samples: QualitySampleCounts {
                done: load(done).saturating_sub(load(&file_counters.failed)),
                dropped: load(dropped) + load(&file_counters.failed),
                judge_failed: load(judge_failed),
            },
        }
    }
}

impl Sink for QualityMonitor {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            let generates = record.api.is_some_and(Api::generates);
            let is_inspected = record.observed.uninspected_reason.is_none()
                && !record.observed.finish_reasons.is_empty();
            // Incomplete responses are skipped, because neither their length nor their text shows
            // how the model behaves.
            if record.outcome != Outcome::Ok || !generates || !is_inspected {
                continue;
            }
            self.trends.record_response(record);
            let prompt = record.prompt.as_ref().filter(|_| record.text_for.quality);
            if let (Some(job_queue), Some(prompt)) = (&self.job_queue, prompt)
                && job_queue.push(QualityJob::from_record(record, prompt.clone()), 1).is_err()
            {
                self.counters.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

// === impl QualityMonitorGuard ===

impl Drop for QualityMonitorGuard {
    /// Sets the shutdown deadline of the worker thread. The field `_worker` is dropped after this
    /// call, and its drop waits until the thread has ended.
    fn drop(&mut self) {
        self.deadline_sender.send_replace(Some(clock::now() + SHUTDOWN_TIMEOUT));
    }
}
