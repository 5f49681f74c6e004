//! Whether answers are as good as they were: how long they are, how many refuse, and what a judge
//! says of a sample of them. Off unless it is switched on; without a file or a judge nobody gets
//! any text.
//!
//! ```text
//! finished ─┬► trends: recent mean ÷ baseline ─► metrics
//!           └► queue, bounded ─► thread: what the content log does to texts ─► judge ─► file
//! ```

mod judge;
mod settings;
#[cfg(test)]
mod tests;
mod trend;
mod trends;
mod worker;

pub use settings::Settings;
pub use trends::OfModel;

use super::bounded_file::{Bounded, Tally};
use super::content::{self, Head, StartError, Treated, Treatment};
use judge::Judge;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::gather::Gatherer;
use tokenweir_core::observe::Sink;
use tokenweir_core::openai::{Api, Excerpt, Finish};
use tokenweir_core::record::{Outcome, RequestRecord};
use tokio::sync::watch;
use trends::Trends;
use worker::Worker;

/// The sink that follows trends, and hands samples to the thread that gives them away. Clones are
/// the same.
#[derive(Clone)]
pub struct Quality {
    trends: Arc<Trends>,
    /// `None`: nobody gets any.
    jobs: Option<Arc<Gatherer<Job>>>,
    tallies: Arc<Tallies>,
}

/// Gives away what is left when it is dropped, for a second, and for as long as a redactor may take.
pub struct Running {
    jobs: Arc<Gatherer<Job>>,
    end: watch::Sender<Option<Instant>>,
    thread: Option<JoinHandle<()>>,
}

/// One moment of it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Vitals {
    /// Each model that had an answer lately.
    pub models: Vec<OfModel>,
    /// Samples by what became of them.
    pub samples: Counts,
}

/// What became of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Judged, or in the file if there is no judge.
    pub done: u64,
    /// The queue was full, the disk failed, or the gateway ended.
    pub dropped: u64,
    /// A redactor was needed, and did not answer as it should.
    pub redactor_failed: u64,
    /// The judge gave no score in time. It is in the file all the same, if there is one.
    pub judge_failed: u64,
}

#[derive(Debug, Default)]
struct Tallies {
    done: AtomicU64,
    dropped: AtomicU64,
    redactor_failed: AtomicU64,
    judge_failed: AtomicU64,
    file: Arc<Tally>,
}

/// A request that is in the sample.
struct Job {
    head: Head,
    prompt: Excerpt,
    answer: Excerpt,
    facts: Facts,
}

/// What is known of an answer besides its text.
#[derive(Debug, Serialize)]
struct Facts {
    finish_reasons: Vec<Option<&'static str>>,
    output_tokens: Option<u64>,
    refused: bool,
}

/// What a judge and the file get, in this order.
#[derive(Debug, Serialize)]
struct Sample<'a> {
    #[serde(flatten)]
    head: &'a Head,
    #[serde(flatten)]
    treated: Treated,
    #[serde(flatten)]
    facts: &'a Facts,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
}

/// Samples that wait for those that the thread has.
const QUEUE: usize = 256;
/// How long the first sample waits for others.
const TOGETHER: Duration = Duration::from_millis(50);
/// How long what is left may take at the end.
const LAST_MOMENTS: Duration = Duration::from_secs(1);

// === impl Quality ===

impl Quality {
    /// Looks at quality as the settings say, and treats texts as those of the content log say.
    /// `None`: it is off.
    pub fn start(
        settings: &Settings,
        texts: &content::Settings,
    ) -> Result<Option<(Self, Option<Running>)>, StartError> {
        if !settings.enabled {
            return Ok(None);
        }
        let trends = Arc::new(Trends::over(settings.recent, settings.baseline));
        let tallies = Arc::new(Tallies::default());
        if settings.share() <= 0.0 {
            return Ok(Some((Self { trends, jobs: None, tallies }, None)));
        }
        let (end, ended) = watch::channel(None);
        let open =
            |path| Bounded::open(path, settings.max_file_bytes as u64 / 2, tallies.file.clone());
        let judge = |url: &String| Judge::new(url, settings.judge_timeout, ended.clone());
        let mut worker = Worker {
            treatment: Treatment::new(texts)?,
            file: settings.file.as_deref().map(open).transpose()?,
            judge: settings.judge.as_ref().map(judge).transpose()?,
            trends: trends.clone(),
            tallies: tallies.clone(),
            end: ended,
        };
        let jobs = Arc::new(Gatherer::new(TOGETHER, QUEUE));
        let of_thread = jobs.clone();
        let thread = thread::Builder::new().name("quality".to_owned());
        let thread = Some(thread.spawn(move || worker.run(&of_thread))?);
        let running = Running { jobs: jobs.clone(), end, thread };
        Ok(Some((Self { trends, jobs: Some(jobs), tallies }, Some(running))))
    }

    /// How it is at `now`.
    pub fn vitals(&self, now: Instant) -> Vitals {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Tallies { done, dropped, redactor_failed, judge_failed, file } = &*self.tallies;
        Vitals {
            models: self.trends.at(now),
            samples: Counts {
                done: of(done).saturating_sub(of(&file.failed)),
                dropped: of(dropped) + of(&file.failed),
                redactor_failed: of(redactor_failed),
                judge_failed: of(judge_failed),
            },
        }
    }
}

impl Sink for Quality {
    fn finished(&self, record: &RequestRecord) {
        let generates = record.api.is_some_and(Api::generates);
        let is_read = record.observed.lost.is_none() && !record.observed.finish_reasons.is_empty();
        // Of an answer that is not whole, neither its length nor its text says what the model does.
        if record.outcome != Outcome::Ok || !generates || !is_read {
            return;
        }
        self.trends.answer(record);
        let prompt = record.prompt.as_ref().filter(|_| record.text_for.quality);
        if let (Some(jobs), Some(prompt)) = (&self.jobs, prompt)
            && jobs.give(Job::of(record, prompt.clone()), 1).is_err()
        {
            self.tallies.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl Job, Running ===

impl Job {
    fn of(record: &RequestRecord, prompt: Excerpt) -> Self {
        let observed = &record.observed;
        let finishes = observed.finish_reasons.iter();
        let facts = Facts {
            finish_reasons: finishes.map(|finish| finish.map(Finish::as_str)).collect(),
            output_tokens: record.output_tokens(),
            refused: record.is_refused_answer(),
        };
        let answer = observed.text.clone().unwrap_or_default();
        Self { head: Head::of(record), prompt, answer, facts }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end.send_replace(Some(clock::now() + LAST_MOMENTS));
        self.jobs.end();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to give.
            let _ = thread.join();
        }
    }
}
