//! Prompts and answers of a sample of requests, one JSON object a line, for whoever asks for them.
//! Off unless a file is named.
//!
//! ```text
//! finished ─► queue, bounded ─► thread: built-in patterns ─► command or url ─► cut ─► file
//! ```
//!
//! What is private is taken out before anything is written. It fails closed: a text that a redactor
//! could not treat in time is not written, and counted.

mod command;
mod hook;
mod patterns;
pub mod redact;
mod settings;
#[cfg(test)]
mod tests;
mod treatment;

pub use settings::Settings;
pub(super) use treatment::{Treated, Treatment};

use super::bounded_file::{Bounded, Tally};
use super::tame;
use serde::Serialize;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::gather::Gatherer;
use tokenweir_core::observe::Sink;
use tokenweir_core::openai::Excerpt;
use tokenweir_core::record::RequestRecord;
use tokenweir_net::supervise::{self, Task};

/// The sink that hands texts to the thread that writes them.
pub struct Content {
    jobs: Arc<Gatherer<Job>>,
    tallies: Arc<Tallies>,
}

/// Writes what is left when it is dropped, for a second, and for as long as a redactor may take.
pub struct Running {
    jobs: Arc<Gatherer<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Counts what became of records, while they are written.
#[derive(Debug, Clone)]
pub struct Counter(Arc<Tallies>);

/// What became of records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// In the file.
    pub written: u64,
    /// Not in the file: the queue was full, or the disk failed.
    pub dropped: u64,
    /// Not in the file: a redactor was needed, and did not answer as it should.
    pub redactor_failed: u64,
}

/// Why a content log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file cannot be written, or there is no thread to be had.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The URL is none that can be asked.
    #[error("`{0}` is not the URL of a redactor")]
    Url(String),
}

#[derive(Debug, Default)]
struct Tallies {
    crowded_out: AtomicU64,
    redactor_failed: AtomicU64,
    file: Arc<Tally>,
}

/// A request whose text is to be written.
struct Job {
    head: Head,
    prompt: Excerpt,
    answer: Excerpt,
}

/// Whose text it is.
#[derive(Debug, Serialize)]
pub(super) struct Head {
    ts: String,
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    model: String,
}

/// The fields of a line, in its order.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    head: &'a Head,
    #[serde(flatten)]
    treated: Treated,
}

/// The thread.
struct Worker {
    treatment: Treatment,
    file: Bounded,
    tallies: Arc<Tallies>,
}

/// Requests that wait for those that the thread has.
const QUEUE: usize = 256;
/// How long the first request waits for others.
const TOGETHER: Duration = Duration::from_millis(50);
/// How long what is left may take at the end.
const LAST_MOMENTS: Duration = Duration::from_secs(1);

// === impl Content ===

impl Content {
    /// Appends to the file of the settings; `None` if there is none.
    pub fn start(settings: &Settings) -> Result<Option<(Self, Running)>, StartError> {
        let Some(path) = &settings.file else { return Ok(None) };
        let tallies = Arc::new(Tallies::default());
        let file = Bounded::open(path, settings.max_file_bytes as u64 / 2, tallies.file.clone())?;
        let treatment = Treatment::new(settings)?;
        let mut worker = Worker { treatment, file, tallies: tallies.clone() };
        let jobs = Arc::new(Gatherer::new(TOGETHER, QUEUE));
        let of_thread = jobs.clone();
        let thread = thread::Builder::new().name("content".to_owned());
        let thread = thread.spawn(move || worker.run(&of_thread))?;
        Ok(Some((Self { jobs: jobs.clone(), tallies }, Running { jobs, thread: Some(thread) })))
    }

    /// What counts the records.
    pub fn counter(&self) -> Counter {
        Counter(self.tallies.clone())
    }
}

impl Sink for Content {
    fn finished(&self, record: &RequestRecord) {
        let prompt = record.prompt.as_ref().filter(|_| record.text_for.log);
        let Some(prompt) = prompt.cloned() else { return };
        let answer = record.observed.text.clone().unwrap_or_default();
        if self.jobs.give(Job { head: Head::of(record), prompt, answer }, 1).is_err() {
            self.tallies.crowded_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl Head, Worker ===

impl Head {
    pub(super) fn of(record: &RequestRecord) -> Self {
        Self {
            ts: humantime::format_rfc3339_millis(record.started).to_string(),
            request_id: record.request_id.as_str().to_owned(),
            trace_id: record.trace.as_ref().map(|trace| format!("{:032x}", trace.trace_id)),
            model: record.model.name().to_owned(),
        }
    }

    /// The label value.
    pub(super) fn model(&self) -> &str {
        &self.model
    }
}

impl Worker {
    fn run(&mut self, jobs: &Gatherer<Job>) {
        let mut end: Option<Instant> = None;
        loop {
            let is_last = !jobs.wait();
            for job in jobs.take() {
                if jobs.is_over() {
                    end.get_or_insert_with(|| clock::now() + LAST_MOMENTS);
                }
                if end.is_some_and(|end| clock::now() >= end) {
                    self.tallies.crowded_out.fetch_add(1, Ordering::Relaxed);
                } else if supervise::catch(Task::ContentLog, || self.write(&job)).is_none() {
                    self.tallies.redactor_failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            if is_last {
                return;
            }
        }
    }

    fn write(&mut self, job: &Job) {
        let Some(treated) = self.treatment.treat(&job.prompt, &job.answer) else {
            self.tallies.redactor_failed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let line = Line { head: &job.head, treated };
        let mut text = tame::json(serde_json::to_string(&line).unwrap_or_default());
        text.push('\n');
        // What fails is counted there.
        let _ = self.file.write_all(text.as_bytes());
    }
}

// === impl Counter, Running ===

impl Counter {
    /// So far.
    pub fn counts(&self) -> Counts {
        let Tallies { crowded_out, redactor_failed, file } = &*self.0;
        Counts {
            written: file.written.load(Ordering::Relaxed),
            dropped: crowded_out.load(Ordering::Relaxed) + file.failed.load(Ordering::Relaxed),
            redactor_failed: redactor_failed.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.jobs.end();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to write.
            let _ = thread.join();
        }
    }
}
