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

    /// Scores all samples concurrently. Returns one score per sample, in the order of the samples.
    /// `None`: the judge failed, was too slow, or returned a score that is not from 0 to 1.
    pub(super) fn score_all(&self, samples: &[QualitySample<'_>]) -> Vec<Option<f64>> {
        self.runtime.block_on(join_all(
            samples.iter().map(|sample| self.score_sample(sample)),
        ))
    }

    async fn score_sample(&self, sample: &QualitySample<'_>) -> Option<f64> {
        let body = serde_json::to_vec(sample).ok()?;
        let post = self.post(body);
        let response = tokio::select! {
            response = tokio::time::timeout(self.timeout, post) => response.ok()?,
            () = self.wait_until_deadline() => None,
        };
        response
            .map(|response| response.score)
            .filter(|score| (0.0..=1.0).contains(score))
    }

    /// Posts a sample to the judge server and reads the response. `None`: the request failed, the
    /// status is not 200, or the body is too long or not valid.
    async fn post(&self, body: Vec<u8>) -> Option<JudgeResponse> {
        let request = Request::post(self.url.clone())
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json")
            .body(Bytes::from(body));
        let response = self.client.send(&self.idle, request.ok()?).await.ok()?;
        if response.status() != StatusCode::OK {
            return None;
        }
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await
            .ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
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
