//! Quality monitoring: measures the lengths, the model refusals and the judge's scores of responses
//! by model, so that a change of a model becomes visible. It is disabled by default. Prompts and
//! responses are sampled only if a file or a judge is configured.
//!
//! ```text
//! finished ─┬► trends: recent mean ÷ baseline mean ─► metrics
//!           └► bounded queue ─► thread: redaction ─► judge ─► file
//! ```

mod judge;
mod model_trends;
pub mod rows;
mod sample;
mod section;
mod settings;
#[cfg(test)]
mod tests;
mod trend;
mod worker;

pub use judge::QualityStartError;
pub use model_trends::ModelQuality;
pub use rows::QualitySnapshot;
pub use sample::QualitySampleCounts;
pub use settings::QualitySettings;

use judge::QualityJudge;
use model_trends::QualityTrends;
use sample::{QualityJob, QualitySampleCounters};
use tokenweir_gateway::telemetry::rotating_file::RotatingFile;
use tokenweir_option::prelude::*;
use tokenweir_payload_log::PayloadLogSettings;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::Api;
use tokenweir_redaction::{PayloadQueue, PayloadQueueGuard, RedactionSettings};
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{Outcome, RequestRecord, TextConsumer};
use tokio::sync::watch;
use worker::{JUDGE_BATCH_SIZE, QualityWorker};

/// Redacts samples of responses and sends them to the quality judge.
pub const TASK: BackgroundTask = BackgroundTask::new("quality_samples");

/// The sink that updates the quality trends and queues samples for the worker thread.
pub struct QualityMonitor {
    /// The consumer of the sampled texts. `None`: no texts are sampled.
    consumer: Option<TextConsumer>,
    trends: Arc<QualityTrends>,
    /// The queue of the worker thread that gets the sampled texts. `None`: no file and no judge are
    /// configured, so no texts are sampled.
    queue: Option<PayloadQueue<QualityJob>>,
    counters: Arc<QualitySampleCounters>,
}

impl QualityMonitor {
    /// Starts quality monitoring. Prompts and responses are redacted with `redaction`. The guard is `None` if no texts
    /// are sampled (`consumer` is `None`), because there is no worker thread then.
    pub fn start(
        settings: &QualitySettings,
        redaction: &RedactionSettings,
        max_file_bytes: u64,
        consumer: Option<TextConsumer>,
    ) -> Result<(Self, Option<PayloadQueueGuard>), QualityStartError> {
        let trends = Arc::new(QualityTrends::new(
            settings.window,
            settings.baseline_window(),
        ));
        let counters = Arc::new(QualitySampleCounters::default());
        let mut monitor = Self {
            consumer,
            trends: trends.clone(),
            queue: None,
            counters: counters.clone(),
        };
        if consumer.is_none() {
            return Ok((monitor, None));
        }
        let shutdown_deadline = watch::Sender::new(None);
        let open_file =
            |path| RotatingFile::open(path, max_file_bytes / 2, counters.file_counters.clone());
        let create_judge = |url: &String| {
            QualityJudge::new(url, settings.judge_timeout, shutdown_deadline.subscribe())
        };
        let mut worker = QualityWorker {
            redaction: redaction.clone(),
            file: settings.file.as_deref().map(open_file).transpose()?,
            judge: settings.judge.as_ref().map(create_judge).transpose()?,
            trends,
            counters,
        };
        let process = move |jobs: &[QualityJob]| worker.process_batch(jobs);
        let (queue, guard) =
            PayloadQueue::start(TASK, JUDGE_BATCH_SIZE, shutdown_deadline, process);
        monitor.queue = Some(queue);
        Ok((monitor, Some(guard)))
    }

    /// Returns the quality of responses by model and the numbers of samples at `now`.
    pub fn vitals(&self, now: Instant) -> QualitySnapshot {
        let QualitySampleCounters {
            done,
            judge_failed,
            judge_error,
            file_counters,
        } = &*self.counters;
        let dropped = self.queue.as_ref().map_or(0, PayloadQueue::dropped);
        QualitySnapshot {
            models: self.trends.snapshot(now),
            samples: QualitySampleCounts {
                done: done.get().saturating_sub(file_counters.failed.get()),
                dropped: dropped + file_counters.failed.get(),
                judge_failed: judge_failed.get(),
            },
            judge_error: lock(judge_error).clone(),
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
            if let Some(queue) = &self.queue
                && let Some(prompt) = &record.prompt
                && self.consumer.is_some_and(|it| record.text_for.has(it))
            {
                queue.push(QualityJob::from_record(record, prompt.clone()));
            }
        }
    }
}

/// Quality monitoring as an option. Empty while it is disabled.
#[derive(Default)]
pub struct QualityOption(OnceLock<Arc<QualityMonitor>>);

impl GatewayOption for QualityOption {
    type Settings = QualitySettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn start(
        self: &Arc<Self>,
        settings: QualitySettings,
        context: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        // Without the redaction settings of operators, secrets would reach the samples.
        let payload_log = parts
            .gateway
            .find::<PayloadLogSettings>()
            .ok_or("`quality` must come after `payload_log` in the list of options")?;
        let redaction = payload_log.redaction();
        if !settings.enabled {
            return Ok(());
        }
        let share = settings.share();
        let consumer = (share > 0.0).then(|| parts.records.add_text_sample(share, true));
        let started =
            QualityMonitor::start(&settings, &redaction, context.max_file_bytes, consumer);
        let (monitor, guard) =
            started.map_err(in_part("cannot start the quality samples (quality)"))?;
        let _ = self.0.set(parts.add_sink(monitor, guard));
        Ok(())
    }

    fn add_status(&self, status: &mut StatusSnapshot, now: Instant) {
        let quality = self.0.get().map(|monitor| monitor.vitals(now));
        status.blocks.add(rows::QualityStatus(quality));
    }

    fn output(settings: &QualitySettings) -> Option<OutputTarget> {
        let target = settings.target()?;
        Some(OutputTarget {
            key: "quality",
            name: "quality",
            text: format!("PROMPTS AND RESPONSES of {target} (quality)"),
            target,
        })
    }
}
