//! Client of a judge server, which scores sampled responses. If the judge fails, the sample has no score,
//! but is otherwise processed as usual.

use super::sample::QualitySample;
use bytes::Bytes;
use futures_util::future::join_all;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use std::io;
use std::time::{Duration, Instant};
use tokenweir_net::client::{HttpClient, HttpClientTimeouts};
use tokenweir_net::idle_pool::IdlePool;
use tokenweir_protocol::clock;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// Why quality monitoring cannot start.
#[derive(Debug, thiserror::Error)]
pub enum QualityStartError {
    /// The file cannot be opened, or a runtime cannot be created.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The URL of the judge is invalid or has no host.
    #[error("`{0}` is not a valid URL of a judge; configure an absolute http URL (quality.judge)")]
    InvalidUrl(String),
}

/// A client of the judge server that scores samples.
pub(super) struct QualityJudge {
    url: Uri,
    host: HeaderValue,
    client: HttpClient,
    idle: IdlePool,
    /// Longest wait for one score.
    timeout: Duration,
    runtime: Runtime,
    /// Instant at which the client stops waiting for scores. `None` until the gateway shuts down.
    shutdown_deadline: watch::Receiver<Option<Instant>>,
}

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
    ) -> Result<Self, QualityStartError> {
        let invalid = || QualityStartError::InvalidUrl(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let host = uri
            .authority()
            .and_then(|it| HeaderValue::from_str(it.as_str()).ok());
        let host = host.ok_or_else(invalid)?;
        let client = HttpClient::new(HttpClientTimeouts::default());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let idle = IdlePool::default();
        Ok(Self {
            url: uri,
            host,
            client,
            idle,
            timeout,
            runtime,
            shutdown_deadline,
        })
    }

    /// Scores all samples concurrently. Returns one score per sample, in the order of the samples. The error is the
    /// reason why the sample has no score, without its texts.
    pub(super) fn score_all(&self, samples: &[QualitySample<'_>]) -> Vec<Result<f64, String>> {
        self.runtime.block_on(join_all(
            samples.iter().map(|sample| self.score_sample(sample)),
        ))
    }

    async fn score_sample(&self, sample: &QualitySample<'_>) -> Result<f64, String> {
        let body = serde_json::to_vec(sample).map_err(|error| error.to_string())?;
        let post = tokio::time::timeout(self.timeout, self.post(body));
        let score = tokio::select! {
            scored = post => scored.map_err(|_| format!("no response within {:?}", self.timeout))??,
            () = self.wait_until_deadline() => return Err("the gateway shuts down".into()),
        };
        if !(0.0..=1.0).contains(&score) {
            return Err(format!("the score is {score}, not from 0 to 1"));
        }
        Ok(score)
    }

    /// Posts a sample to the judge server, and returns the score of its response.
    async fn post(&self, body: Vec<u8>) -> Result<f64, String> {
        let request = Request::post(self.url.clone())
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json")
            .body(Bytes::from(body))
            .map_err(|error| error.to_string())?;
        let response = self.client.send(&self.idle, request).await;
        let response = response.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("the status is {}", response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES);
        let body = body.collect().await.map_err(|error| error.to_string())?;
        // The error of the parser could contain a part of the response.
        let parsed: Result<JudgeResponse, _> = serde_json::from_slice(&body.to_bytes());
        let response = parsed.map_err(|_| "the body is no JSON object with a number `score`")?;
        Ok(response.score)
    }

    /// Waits until the shutdown deadline has passed. Does not return before the gateway shuts down.
    async fn wait_until_deadline(&self) {
        let mut deadline = self.shutdown_deadline.clone();
        let deadline = deadline
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|deadline| *deadline);
        tokio::time::sleep_until(deadline.unwrap_or_else(clock::now).into()).await;
    }
}
