//! One request of a replay in real time: when it is sent, and how it ended.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_bench::measure::Answer;
use tokenweir_bench::send::Sender;
use tokenweir_core::clock;
use tokenweir_lab::score::Served;
use tokenweir_lab::synthesis::Synthesis;
use tokenweir_lab::trace::Job;
use tokio::sync::Semaphore;

/// What is needed to send any request of a trace.
pub(super) struct Requester {
    pub(super) sender: Sender,
    pub(super) jobs: Arc<[Job]>,
    pub(super) synthesis: Synthesis,
}

/// How a request ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// What came, or the kind of failure.
    pub(super) result: Result<Answered, Cow<'static, str>>,
    /// There was no place for it when it was due.
    pub(super) has_waited: bool,
    /// It was sent so long after it was due.
    pub(super) late: Duration,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answered {
    /// Its times, from when it was due, and its tokens.
    pub(super) served: Served,
    /// The client left before its end, as the trace says.
    pub(super) has_left: bool,
    /// It told how much of the prompt was cached.
    pub(super) tells_cached: bool,
}

// === impl Ended ===

impl Ended {
    /// Nothing else is known.
    pub(super) fn failed(kind: &'static str) -> Self {
        Self { result: Err(kind.into()), has_waited: false, late: Duration::ZERO }
    }
}

// === impl Requester ===

impl Requester {
    /// Sends a request that is due now, when there is a place for it, and reads its answer.
    pub(super) async fn ended(
        self: Arc<Self>,
        number: usize,
        due: Instant,
        places: Arc<Semaphore>,
    ) -> Ended {
        let has_waited = places.available_permits() == 0;
        // It is never closed.
        let _place = places.acquire().await;
        let late = clock::now().saturating_duration_since(due);
        let result = match self.jobs.get(number) {
            Some(job) => self.answer(job, number as u64, due).await,
            None => Err("defect".into()),
        };
        Ended { result, has_waited, late }
    }

    async fn answer(
        &self,
        job: &Job,
        number: u64,
        due: Instant,
    ) -> Result<Answered, Cow<'static, str>> {
        let body = self.sender.body(&self.synthesis.prompt(job, number), job);
        let begun = clock::now().saturating_duration_since(due).as_secs_f64();
        let answer = self.sender.answer(job, body, None).await.map_err(|failure| failure.kind)?;
        let Answer { ttft, decode, input, cached, output, has_left, .. } = answer;
        let ttft = begun + ttft;
        let served = Served { ttft, decode, prompt: input, cached: cached.unwrap_or(0), output };
        Ok(Answered { served, has_left, tells_cached: cached.is_some() })
    }
}
