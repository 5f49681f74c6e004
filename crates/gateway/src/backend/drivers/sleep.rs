//! Sleep mode of vLLM: wakes an engine for which requests wait, and puts an idle one to sleep.

use crate::backend::Health;
use crate::backend::health_checker::HealthChecker;
use http::StatusCode;
use std::time::{Duration, Instant};
use tokenweir_net::page_fetcher::{FetchError, PagePost};
use tokenweir_protocol::clock;
use tokenweir_routing::resilience::Availability;

/// The path that puts the engine to sleep. Level 1 keeps the weights in the memory of the host.
/// After level 2 they would have to be loaded anew.
const SLEEP_PATH: &str = "/sleep?level=1";
const WAKE_PATH: &str = "/wake_up";
/// Time after which the gateway wakes an engine that still sleeps once more.
const WAKE_INTERVAL: Duration = Duration::from_secs(10);

impl HealthChecker {
    /// Wakes the engine if requests wait for it, or puts it to sleep if it is idle.
    pub(super) async fn update_sleep(&mut self) {
        let settings = self.context.pool.facet_settings().sleep;
        let now = clock::now();
        let sleep = &self.backend.facets.sleep;
        let state = self.backend.health.state();
        let is_asleep = state.engine_availability() == Some(Availability::Asleep);
        if is_asleep && self.facets.sleep.falling_asleep.is_none() {
            self.facets.sleep.busy_at = now;
            if sleep.is_wake_requested.get() && settings.wake {
                self.wake(now).await;
            }
            return;
        }
        if state.health == Health::Up && !is_asleep {
            sleep.is_wake_requested.set(false);
        }
        let load = state.sample.map(|sample| sample.load).unwrap_or_default();
        let is_idle = self.backend.load.in_flight() == 0
            && load.is_idle() == Some(true)
            && !self.has_load_changed
            && self.context.pool.capacity_notifier.waiting_requests() == 0;
        if !is_idle {
            self.facets.sleep.busy_at = now;
        }
        let idle_time = now.saturating_duration_since(self.facets.sleep.busy_at);
        let is_due = settings.wake && settings.idle.is_some_and(|idle| idle_time >= idle);
        // Only an engine whose metrics show whether it sleeps is put to sleep.
        let may_sleep = state.health == Health::Up
            && load.is_asleep() == Some(false)
            && !self.facets.sleep.refuses;
        if is_idle && may_sleep && is_due {
            self.fall_asleep().await;
        } else if self.facets.sleep.falling_asleep.take().is_some() {
            self.backend.update_state(|state| state.withdrawal = None);
        }
    }

    async fn wake(&mut self, now: Instant) {
        let is_recent = |at| now.saturating_duration_since(at) < WAKE_INTERVAL;
        self.interval = self.context.settings.min_interval;
        if self.facets.sleep.woken_at.is_some_and(is_recent) {
            return;
        }
        self.facets.sleep.woken_at = Some(now);
        let backend = &self.backend.identity.id;
        tracing::info!(%backend, "waking the engine of the backend: requests wait for it");
        match self.post(WAKE_PATH).await {
            // A large engine takes longer to wake than the timeout, so a timeout is no failure.
            Ok(StatusCode::OK) | Err(FetchError::Timeout) => self.backend.facets.sleep.on_woken(),
            result => {
                let answer = describe(&result);
                tracing::warn!(backend = %self.backend.identity.id, answer, "the backend did not wake its engine: another sleeping backend may be woken");
                // Then another sleeping backend that serves the model may be woken.
                self.backend.facets.sleep.is_wake_requested.set(false);
            }
        }
        self.scrape_backoff_until = clock::now();
    }

    /// Puts the engine to sleep in two health checks. From the first check on, the backend gets no new
    /// requests. If a request still reaches the backend, the second check finds it busy, and the engine
    /// stays awake.
    async fn fall_asleep(&mut self) {
        self.interval = self.context.settings.min_interval;
        if self.facets.sleep.falling_asleep.is_none() {
            self.facets.sleep.falling_asleep = self.context.pool.facets.sleep.acquire();
            if self.facets.sleep.falling_asleep.is_some() {
                let asleep = Some(Availability::Asleep);
                self.backend.update_state(|state| state.withdrawal = asleep);
                self.scrape_backoff_until = clock::now();
            }
            return;
        }
        match self.post(SLEEP_PATH).await {
            Ok(StatusCode::OK) => {
                let backend = &self.backend.identity.id;
                tracing::info!(%backend, "the engine of the backend was put to sleep: it was idle");
                self.backend.facets.sleep.on_asleep();
                self.scrape_backoff_until = clock::now();
                self.scrape().await;
            }
            // The engine needs longer than the timeout. The next metrics pages show when it sleeps.
            Err(FetchError::Timeout) => return,
            result => {
                let answer = describe(&result);
                tracing::warn!(backend = %self.backend.identity.id, answer, "the engine cannot be put to sleep: it needs --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1");
                self.facets.sleep.refuses = true;
            }
        }
        self.backend.update_state(|state| state.withdrawal = None);
        self.facets.sleep.falling_asleep = None;
    }

    async fn post(&mut self, path: &'static str) -> Result<StatusCode, FetchError> {
        let post = PagePost { body: bytes::Bytes::new(), header: None };
        self.fetcher.post(path, &post).await.map(|(status, _)| status)
    }
}

fn describe(result: &Result<StatusCode, FetchError>) -> String {
    match result {
        Ok(status) => format!("status {}", status.as_u16()),
        Err(error) => error.describe(),
    }
}
