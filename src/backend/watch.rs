//! The watcher of one replica: it looks at its health and its metrics, and now and then at its
//! models and its version, and publishes what it sees. One look at a time, so a slow replica is
//! never asked twice at once.

use super::client::{Client, SendError};
use super::dialect::Load;
use super::{Backend, Health, Model, Sample, ScrapeError, recent};
use crate::{clock, units};
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HOST};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How a replica is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Time between two looks while requests are in flight.
    #[serde(rename = "busy_interval", with = "units::duration")]
    pub busy: Duration,
    /// Time between two looks while there are none.
    #[serde(rename = "idle_interval", with = "units::duration")]
    pub idle: Duration,
    /// Longest wait for an answer.
    #[serde(with = "units::duration")]
    pub timeout: Duration,
    /// Longest page, in bytes.
    #[serde(with = "units::bytes")]
    pub max_page: usize,
}

impl Default for Settings {
    /// Every 250 ms when busy, every 2 s when idle; 2 s and 4 MiB for an answer.
    fn default() -> Self {
        Self {
            busy: Duration::from_millis(250),
            idle: Duration::from_secs(2),
            timeout: Duration::from_secs(2),
            max_page: 4 << 20,
        }
    }
}

/// Counts of what a watcher did, for metrics.
pub trait Tally: Send + Sync + 'static {
    /// A metrics page was asked for and came after this time, or failed.
    fn scraped(&self, backend: &Backend, took: Duration, error: Option<ScrapeError>);
}

/// Least time between two looks, whoever asks for one.
const LEAST_PAUSE: Duration = Duration::from_millis(20);
/// How often the models and the version are asked for again.
const MODELS_EVERY: Duration = Duration::from_secs(10);
/// How often they are, while a replica does not know models that it said it serves.
const DOUBTED_MODELS_EVERY: Duration = Duration::from_secs(1);
/// Looks in a row without an answer in time after which a replica that was up is down: an engine
/// under load may be slow to say that it is well. A refused connection is believed at once.
const PATIENCE: u32 = 3;

/// Watches until it is dropped.
pub async fn watch(
    backend: Arc<Backend>,
    client: Client,
    settings: Settings,
    tally: Arc<dyn Tally>,
) {
    let mut watcher = Watcher {
        backend,
        client,
        settings,
        tally,
        failures: 0,
        models_at: None,
        window_at: clock::now(),
    };
    loop {
        watcher.look().await;
        watcher.turn_window();
        // Only the first look sets it.
        let _ = watcher.backend.looked.set(());
        // Failing requests ask for a look each; one in a while is enough.
        tokio::time::sleep(LEAST_PAUSE).await;
        let pause = watcher.pause().saturating_sub(LEAST_PAUSE);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = watcher.backend.look_again.notified() => {}
        }
    }
}

struct Watcher {
    backend: Arc<Backend>,
    client: Client,
    settings: Settings,
    tally: Arc<dyn Tally>,
    /// Failed looks in a row.
    failures: u32,
    models_at: Option<Instant>,
    window_at: Instant,
}

impl Watcher {
    fn turn_window(&mut self) {
        let now = clock::now();
        if now.saturating_duration_since(self.window_at) >= recent::WINDOW {
            self.window_at = now;
            self.backend.gaps.turn();
        }
    }

    async fn look(&mut self) {
        match self.fetch("/health").await {
            Ok((StatusCode::OK, _)) => self.is_up().await,
            Ok((status, _)) => self.is_down(&format!("/health answered {}", status.as_u16()), true),
            Err(Failure::Connect(reason)) => self.is_down(&reason, true),
            Err(failure) => self.is_down(&format!("/health: {failure:?}"), false),
        }
    }

    async fn is_up(&mut self) {
        self.failures = 0;
        self.scrape().await;
        let now = clock::now();
        let every = self.models_every();
        let is_due = |at: Instant| now.saturating_duration_since(at) >= every;
        if self.models_at.is_none_or(is_due) {
            self.ask_models().await;
        }
        let was = self.backend.state().health;
        self.backend.update(|state| {
            state.health = Health::Up;
            state.reason = None;
        });
        if was != Health::Up {
            tracing::info!(backend = %self.backend.id, "replica is up");
        }
    }

    fn is_down(&mut self, reason: &str, is_certain: bool) {
        self.failures += 1;
        let was = self.backend.state().health;
        if was == Health::Up && !is_certain && self.failures < PATIENCE {
            return;
        }
        // Another version may come back.
        self.models_at = None;
        self.backend.update(|state| {
            state.health = Health::Down;
            state.reason = Some(reason.into());
        });
        if was != Health::Down {
            tracing::warn!(backend = %self.backend.id, reason, "replica is down");
        }
    }

    async fn scrape(&self) {
        let backend = &self.backend;
        let at = clock::now();
        let own = backend.ledger.own();
        let page = match self.fetch("/metrics").await {
            Ok((StatusCode::OK, page)) => Ok(page),
            Ok(_) => Err(ScrapeError::Status),
            Err(failure) => Err(failure.into()),
        };
        let load = page.and_then(|page| {
            let load = Load::read(&page);
            if load.is_understood() { Ok(load) } else { Err(ScrapeError::NotUnderstood) }
        });
        let took = clock::now().saturating_duration_since(at);
        self.tally.scraped(backend, took, load.err());
        if let Some(report) = load.ok().and_then(|load| load.report()) {
            backend.ledger.on_report(&report, &own, at);
        }
        let before = backend.state().metrics_error;
        backend.update(|state| {
            state.metrics_error = load.err();
            if let Ok(load) = load {
                state.sample = Some(Sample { load, at });
                state.means.on_sample(&load, at);
            }
        });
        if let Err(error) = load
            && before != Some(error)
        {
            let error = error.as_str();
            tracing::warn!(backend = %backend.id, error, "metrics cannot be used; the last ones age");
        }
    }

    fn models_every(&self) -> Duration {
        let is_doubted = self.backend.is_doubted.load(Ordering::Relaxed);
        if is_doubted { DOUBTED_MODELS_EVERY } else { MODELS_EVERY }
    }

    async fn ask_models(&mut self) {
        let models = match self.fetch("/v1/models").await {
            Ok((StatusCode::OK, body)) => Model::list(&body),
            _ => None,
        };
        let version = match self.fetch("/version").await {
            Ok((StatusCode::OK, body)) => version(&body),
            _ => None,
        };
        if let Some(models) = models {
            self.models_at = Some(clock::now());
            self.backend.serves(&models);
        }
        self.backend.update(|state| state.version = version.clone().or(state.version.take()));
    }

    /// The pause before the next look, with some jitter so that gateways do not fall into step.
    fn pause(&self) -> Duration {
        let is_busy = self.backend.ledger.own().in_flight > 0;
        let pause = if is_busy { self.settings.busy } else { self.settings.idle };
        pause.mul_f64(0.9 + 0.2 * fastrand::f64())
    }

    async fn fetch(&self, path: &'static str) -> Result<(StatusCode, Bytes), Failure> {
        tokio::time::timeout(self.settings.timeout, self.fetch_all(path))
            .await
            .unwrap_or(Err(Failure::Timeout))
    }

    async fn fetch_all(&self, path: &'static str) -> Result<(StatusCode, Bytes), Failure> {
        let address = &self.backend.address;
        let mut request = Request::new(Full::default());
        *request.uri_mut() = address.uri(&PathAndQuery::from_static(path));
        let headers = request.headers_mut();
        headers.insert(HOST, address.host_header().clone());
        // OpenMetrics makes some servers rename their metrics.
        headers.insert(ACCEPT, HeaderValue::from_static("text/plain; version=0.0.4"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(key) = &self.backend.authorization {
            headers.insert(AUTHORIZATION, key.clone());
        }
        let response = self.client.send(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), self.settings.max_page);
        match body.collect().await {
            Ok(body) => Ok((status, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => Err(Failure::TooLarge),
            Err(_) => Err(Failure::Broken),
        }
    }
}

#[derive(Debug)]
enum Failure {
    Connect(String),
    Broken,
    Timeout,
    TooLarge,
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connect(reason) => Self::Connect(reason),
            SendError::Timeout(_) => Self::Timeout,
            SendError::Stale | SendError::Closed(_) | SendError::Garbage(_) => Self::Broken,
        }
    }
}

impl From<Failure> for ScrapeError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Connect(_) | Failure::Broken => Self::Connect,
            Failure::Timeout => Self::Timeout,
            Failure::TooLarge => Self::TooLarge,
        }
    }
}

fn version(body: &[u8]) -> Option<Arc<str>> {
    let version: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(version.get("version")?.as_str()?.into())
}
