//! Posts the alerts to one Alertmanager.

use super::alert_tracker::VALIDITY;
use super::held_alert::{HeldAlert, request_body};
use super::settings::{AlertmanagerEndpoint, SendIntervals};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokenweir_core::clock;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts, SendError};
use tokenweir_net::idle_pool::IdlePool;
use tokio::sync::watch;

/// An Alertmanager, and the results of the requests to it.
pub(super) struct AlertmanagerSender {
    pub(super) endpoint: AlertmanagerEndpoint,
    intervals: SendIntervals,
    client: HttpClient,
    idle: IdlePool,
    deliveries: Mutex<Deliveries>,
}

/// The results of the requests to one Alertmanager.
#[derive(Debug, Clone)]
pub(super) struct Deliveries {
    pub(super) ok: u64,
    pub(super) failed: u64,
    /// Time of the last accepted request, or of the start.
    pub(super) last_accepted: Instant,
    /// Why the last request failed. `None`: it did not, or none has ended.
    pub(super) error: Option<String>,
}

/// Why an Alertmanager did not accept a request.
#[derive(Debug, thiserror::Error)]
enum PostError {
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("no response: {0}")]
    NoResponse(&'static str),
    #[error("it responded with status {0}")]
    Status(StatusCode),
    #[error("its response was not complete within {TIMEOUT:?}")]
    Timeout,
    #[error("the request is invalid")]
    Invalid,
}

/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a response body that is read, so that the connection can be reused.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

impl PostError {
    fn of(error: SendError) -> Self {
        match error {
            SendError::Connect(problem) => Self::Connect(problem),
            error => Self::NoResponse(error.reason()),
        }
    }
}

impl AlertmanagerSender {
    /// A sender. `deliveries`: the results with previous settings.
    pub(super) fn new(
        endpoint: AlertmanagerEndpoint,
        intervals: SendIntervals,
        deliveries: Option<Deliveries>,
    ) -> Self {
        let timeouts = HttpClientTimeouts::default();
        let client = HttpClient::with_tls(timeouts, endpoint.outbound.clone());
        let none = || Deliveries { ok: 0, failed: 0, last_accepted: clock::now(), error: None };
        let deliveries = Mutex::new(deliveries.unwrap_or_else(none));
        Self { endpoint, intervals, client, idle: IdlePool::default(), deliveries }
    }

    pub(super) fn deliveries(&self) -> Deliveries {
        self.lock().clone()
    }

    /// Posts the alerts when they change and at least after `intervals.resend`, until the future
    /// is dropped. An empty list is posted too, so that the age of the last accepted request is known.
    pub(super) async fn run(&self, mut alerts: watch::Receiver<Arc<[HeldAlert]>>) {
        loop {
            let started_at = clock::now();
            let current = alerts.borrow_and_update().clone();
            let result = tokio::time::timeout(TIMEOUT, self.post(&current, clock::wall_time()));
            let result = result.await.unwrap_or(Err(PostError::Timeout));
            let SendIntervals { min, retry, resend } = self.intervals;
            let is_accepted = result.is_ok();
            self.record(result);
            let pause = if is_accepted { min } else { retry };
            tokio::time::sleep_until((started_at + pause).into()).await;
            if is_accepted {
                let resend_at = started_at + resend;
                // The sender of the channel lives as long as this task.
                let _ = tokio::time::timeout_at(resend_at.into(), alerts.changed()).await;
            }
        }
    }

    async fn post(&self, alerts: &[HeldAlert], now: SystemTime) -> Result<(), PostError> {
        let AlertmanagerEndpoint { address, path, authorization, runbooks, .. } = &self.endpoint;
        let body =
            request_body(alerts, runbooks, now + VALIDITY).map_err(|_| PostError::Invalid)?;
        let mut request = Request::post(address.uri(path))
            .header(HOST, address.host_header())
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Bytes::from(body)).map_err(|_| PostError::Invalid)?;
        let response = self.client.send(&self.idle, request).await.map_err(PostError::of)?;
        let status = response.status();
        // The text of the response is not needed.
        let _ = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        if status.is_success() { Ok(()) } else { Err(PostError::Status(status)) }
    }

    /// Counts a request. Logs the first of several consecutive failures, and the first success after
    /// a failure.
    fn record(&self, result: Result<(), PostError>) {
        let error = result.err().map(|error| error.to_string());
        let mut deliveries = self.lock();
        match &error {
            None => (deliveries.ok, deliveries.last_accepted) = (deliveries.ok + 1, clock::now()),
            Some(_) => deliveries.failed += 1,
        }
        let previous = std::mem::replace(&mut deliveries.error, error.clone());
        drop(deliveries);
        let alertmanager = self.endpoint.address.authority();
        match (previous, error) {
            (None, Some(error)) => tracing::warn!(
                alertmanager,
                error,
                "alerts do not reach an Alertmanager: trying again"
            ),
            (Some(_), None) => tracing::info!(alertmanager, "alerts reach the Alertmanager again"),
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Deliveries> {
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
