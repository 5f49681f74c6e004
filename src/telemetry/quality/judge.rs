//! A server that says how good an answer is. Whatever else it does costs a score and nothing more.

use super::Sample;
use crate::telemetry::content::StartError;
use crate::telemetry::post::Post;
use futures_util::future::join_all;
use serde::Deserialize;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// The server, and the way to it.
pub(super) struct Judge {
    post: Post,
    patience: Duration,
    runtime: Runtime,
    /// When nobody waits for it any more, once that is known.
    end: watch::Receiver<Option<Instant>>,
}

/// What it answers.
#[derive(Deserialize)]
struct Verdict {
    score: f64,
}

/// The longest answer in bytes.
const MAX_ANSWER: usize = 64 << 10;

impl Judge {
    /// The server at this URL.
    pub(super) fn new(
        url: &str,
        patience: Duration,
        end: watch::Receiver<Option<Instant>>,
    ) -> Result<Self, StartError> {
        let post = Post::new(url, MAX_ANSWER).ok_or_else(|| StartError::Url(url.to_owned()))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { post, patience, runtime, end })
    }

    /// A score for each, asked for at once. `None`: it gave none in time.
    pub(super) fn scores(&self, samples: &[Sample<'_>]) -> Vec<Option<f64>> {
        self.runtime.block_on(join_all(samples.iter().map(|sample| self.score(sample))))
    }

    async fn score(&self, sample: &Sample<'_>) -> Option<f64> {
        let body = serde_json::to_vec(sample).ok()?;
        let verdict = tokio::select! {
            verdict = tokio::time::timeout(self.patience, self.post.ask::<Verdict>(body)) => verdict.ok()?,
            () = self.end() => None,
        };
        verdict.map(|verdict| verdict.score).filter(|score| (0.0..=1.0).contains(score))
    }

    async fn end(&self) {
        let mut end = self.end.clone();
        let end = end.wait_for(Option::is_some).await.ok().and_then(|end| *end);
        tokio::time::sleep_until(end.unwrap_or_else(clock::now).into()).await;
    }
}
