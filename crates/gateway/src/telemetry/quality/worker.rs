//! The worker thread of quality monitoring. First it redacts the samples. Then it requests a score
//! for each redacted sample from the judge, if a judge is configured. Last it writes the redacted
//! samples and their scores to a file, if a file is configured.

use super::judge::QualityJudge;
use super::model_trends::QualityTrends;
use super::sample::{QualityJob, QualitySample, QualitySampleCounters};
use crate::telemetry::payload_log::PayloadLogSettings;
use crate::telemetry::rotating_file::RotatingFile;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::clock;
use tokenweir_request::batch_queue::BatchQueue;
use tokio::sync::watch;

/// The state of the worker thread.
pub(super) struct QualityWorker {
    /// How the texts of the samples are redacted.
    pub(super) payload_settings: PayloadLogSettings,
    /// File to which the samples are written. `None`: no file is configured.
    pub(super) file: Option<RotatingFile>,
    /// Client of the judge server. `None`: no judge is configured.
    pub(super) judge: Option<QualityJudge>,
    pub(super) trends: Arc<QualityTrends>,
    pub(super) counters: Arc<QualitySampleCounters>,
    /// Instant from which samples are dropped. `None` until the gateway shuts down.
    pub(super) shutdown_deadline: watch::Receiver<Option<Instant>>,
}

/// Maximum number of samples that the judge scores concurrently.
const JUDGE_BATCH_SIZE: usize = 8;

impl QualityWorker {
    /// Processes the queued samples.
    pub(super) fn process_queued(&mut self, job_queue: &BatchQueue<QualityJob>) {
        for jobs in job_queue.take_batch().chunks(JUDGE_BATCH_SIZE) {
            let process = || self.process_batch(jobs);
            if supervise::catch_panic(BackgroundTask::QualitySamples, process).is_none() {
                self.counters.dropped.fetch_add(jobs.len() as u64, Ordering::Relaxed);
            }
        }
    }

    fn process_batch(&mut self, jobs: &[QualityJob]) {
        let samples: Vec<QualitySample<'_>> =
            jobs.iter().filter_map(|job| self.prepare_sample(job)).collect();
        let scores = match &self.judge {
            Some(judge) => judge.score_all(&samples),
            None => vec![None; samples.len()],
        };
        for (sample, score) in samples.into_iter().zip(scores) {
            if let Some(score) = score {
                self.trends.record_score(sample.payload.model(), score, clock::now());
            }
            if let Some(file) = &mut self.file {
                file.write_json(&QualitySample { score, ..sample });
            }
            let is_judge_failed = self.judge.is_some() && score.is_none();
            let counters = &self.counters;
            let counter = if is_judge_failed { &counters.judge_failed } else { &counters.done };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Redacts the texts of a sample. `None`: the sample was dropped and counted, because the
    /// shutdown deadline has passed.
    fn prepare_sample<'a>(&mut self, job: &'a QualityJob) -> Option<QualitySample<'a>> {
        if self.shutdown_deadline.borrow().is_some_and(|deadline| clock::now() >= deadline) {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let payload = self.payload_settings.redact_texts(&job.texts);
        Some(QualitySample { payload, metadata: &job.metadata, score: None })
    }
}
