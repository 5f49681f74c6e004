//! The worker thread of quality monitoring. First it redacts the samples. Then it requests a score
//! for each redacted sample from the judge, if a judge is configured. Last it writes the redacted
//! samples and their scores to a file, if a file is configured.

use super::judge::QualityJudge;
use super::model_trends::QualityTrends;
use super::sample::{QualityJob, QualitySample, QualitySampleCounters};
use std::sync::Arc;
use std::{iter, mem};
use tokenweir_gateway::telemetry::rotating_file::RotatingFile;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokenweir_redaction::RedactionSettings;

/// The state of the worker thread of quality monitoring.
pub(super) struct QualityWorker {
    /// How the texts of the samples are redacted.
    pub(super) redaction: RedactionSettings,
    /// File to which the samples are written. `None`: no file is configured.
    pub(super) file: Option<RotatingFile>,
    /// Client of the judge server. `None`: no judge is configured.
    pub(super) judge: Option<QualityJudge>,
    pub(super) trends: Arc<QualityTrends>,
    pub(super) counters: Arc<QualitySampleCounters>,
}

/// Maximum number of samples that the judge scores concurrently.
pub(super) const JUDGE_BATCH_SIZE: usize = 8;

impl QualityWorker {
    /// Redacts the samples, requests their scores from the judge and writes them to the file.
    pub(super) fn process_batch<'a>(&mut self, jobs: &'a [QualityJob]) {
        let redact = |job: &'a QualityJob| QualitySample {
            payload: self.redaction.redact_texts(&job.texts),
            metadata: &job.metadata,
            score: None,
        };
        let samples: Vec<QualitySample<'_>> = jobs.iter().map(redact).collect();
        let scores = self.judge.as_ref().map(|judge| judge.score_all(&samples));
        let scores = scores.unwrap_or_default();
        if !scores.is_empty() {
            self.on_result(
                scores
                    .iter()
                    .find_map(|score| score.as_ref().err().cloned()),
            );
        }
        let scores = scores.into_iter().map(Result::ok);
        let scores = scores.chain(iter::repeat(None));
        for (sample, score) in samples.into_iter().zip(scores) {
            if let Some(score) = score {
                self.trends
                    .record_score(sample.payload.model(), score, clock::now());
            }
            if let Some(file) = &mut self.file {
                file.write_json(&QualitySample { score, ..sample });
            }
            let is_judge_failed = self.judge.is_some() && score.is_none();
            let counters = &self.counters;
            let counter = if is_judge_failed {
                &counters.judge_failed
            } else {
                &counters.done
            };
            counter.add(1);
        }
    }

    /// Logs the first of several consecutive failures, and the first success after a failure.
    fn on_result(&self, error: Option<String>) {
        let previous = mem::replace(&mut *lock(&self.counters.judge_error), error.clone());
        match (previous, error) {
            (None, Some(error)) => tracing::warn!(error, "the judge does not score samples"),
            (Some(_), None) => tracing::info!("the judge scores samples again"),
            _ => {}
        }
    }
}
