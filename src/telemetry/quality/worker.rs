//! The thread that makes samples of requests and gives them away.

use super::judge::Judge;
use super::{Job, Sample, Tallies, Trends};
use crate::telemetry::bounded_file::Bounded;
use crate::telemetry::content::Treatment;
use crate::telemetry::tame;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::gather::Gatherer;
use tokenweir_net::supervise::{self, Task};
use tokio::sync::watch;

/// What the thread has.
pub(super) struct Worker {
    pub(super) treatment: Treatment,
    pub(super) file: Option<Bounded>,
    pub(super) judge: Option<Judge>,
    pub(super) trends: Arc<Trends>,
    pub(super) tallies: Arc<Tallies>,
    /// When it has to be done, once that is known.
    pub(super) end: watch::Receiver<Option<Instant>>,
}

/// Samples that are judged at once.
const AT_ONCE: usize = 8;

impl Worker {
    /// Until there is nothing more to come.
    pub(super) fn run(&mut self, jobs: &Gatherer<Job>) {
        loop {
            let is_last = !jobs.wait();
            for jobs in jobs.take().chunks(AT_ONCE) {
                if supervise::catch(Task::QualitySamples, || self.handle(jobs)).is_none() {
                    self.tallies.dropped.fetch_add(jobs.len() as u64, Ordering::Relaxed);
                }
            }
            if is_last {
                return;
            }
        }
    }

    fn handle(&mut self, jobs: &[Job]) {
        let samples: Vec<Sample<'_>> = jobs.iter().filter_map(|job| self.sample(job)).collect();
        let scores = match &self.judge {
            Some(judge) => judge.scores(&samples),
            None => vec![None; samples.len()],
        };
        for (sample, score) in samples.into_iter().zip(scores) {
            if let Some(score) = score {
                self.trends.score(sample.head.model(), score, clock::now());
            }
            self.write(&Sample { score, ..sample });
            let is_unjudged = self.judge.is_some() && score.is_none();
            let tallies = &self.tallies;
            let tally = if is_unjudged { &tallies.judge_failed } else { &tallies.done };
            tally.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What others may have of a request. `None`: nothing.
    fn sample<'a>(&mut self, job: &'a Job) -> Option<Sample<'a>> {
        if self.end.borrow().is_some_and(|end| clock::now() >= end) {
            self.tallies.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let Some(treated) = self.treatment.treat(&job.prompt, &job.answer) else {
            self.tallies.redactor_failed.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        Some(Sample { head: &job.head, treated, facts: &job.facts, score: None })
    }

    fn write(&mut self, sample: &Sample<'_>) {
        let Some(file) = &mut self.file else { return };
        let mut line = tame::json(serde_json::to_string(sample).unwrap_or_default());
        line.push('\n');
        // What fails is counted there.
        let _ = file.write_all(line.as_bytes());
    }
}
