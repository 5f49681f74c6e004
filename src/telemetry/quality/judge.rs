//! Client of a judge server, which scores responses. If the judge fails, the sample has no score,
//! and nothing else changes.

use super::sample::QualitySample;
use crate::telemetry::clients::json_client::JsonHttpClient;
use crate::telemetry::payload_log::PayloadSinkStartError;
use futures_util::future::join_all;
use serde::Deserialize;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// A client of the judge server that scores samples.
pub(super) struct QualityJudge {
    client: JsonHttpClient,
    /// Longest wait for one score.
    timeout: Duration,
    runtime: Runtime,
    /// Instant at which the client stops to wait for scores. `None` until the gateway shuts down.
    shutdown_deadline: watch::Receiver<Option<Instant>>,
}

/// The response of the judge.
#[derive(Deserialize)]
struct JudgeResponse {
    /// The quality of the response, from 0 to 1.
    score: f64,
}

/// Maximum length of a response of the judge, in bytes. A longer response is an error.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

impl QualityJudge {
    /// Creates a client of the judge server at this URL. `timeout` is the longest wait for one
    /// score.
    pub(super) fn new(
        url: &str,
        timeout: Duration,
        shutdown_deadline: watch::Receiver<Option<Instant>>,
    ) -> Result<Self, PayloadSinkStartError> {
        let client = JsonHttpClient::new(url, MAX_RESPONSE_BYTES)
            .ok_or_else(|| PayloadSinkStartError::InvalidUrl(url.to_owned()))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { client, timeout, runtime, shutdown_deadline })
    }

    /// Scores all samples concurrently. Returns one score per sample, in the order of the samples.
    /// `None`: the judge failed, was too slow, or returned a score that is not from 0 to 1.
    pub(super) fn score_all(&self, samples: &[QualitySample<'_>]) -> Vec<Option<f64>> {
        self.runtime.block_on(join_all(samples.iter().map(|sample| self.score_sample(sample))))
    }

    async fn score_sample(&self, sample: &QualitySample<'_>) -> Option<f64> {
        let body = serde_json::to_vec(sample).ok()?;
        let post = self.client.post_json::<JudgeResponse>(body);
        let response = tokio::select! {
            response = tokio::time::timeout(self.timeout, post) => response.ok()?,
            () = self.wait_until_deadline() => None,
        };
        response.map(|response| response.score).filter(|score| (0.0..=1.0).contains(score))
    }

    /// Waits until the shutdown deadline has passed. Does not return before the gateway shuts down.
    async fn wait_until_deadline(&self) {
        let mut deadline = self.shutdown_deadline.clone();
        let deadline = deadline.wait_for(Option::is_some).await.ok().and_then(|deadline| *deadline);
        tokio::time::sleep_until(deadline.unwrap_or_else(clock::now).into()).await;
    }
}
