//! The step of the health checker that wakes an engine for which requests wait, and puts an idle one to sleep.

use crate::facet::SleepFacet;
use crate::mode::SleepMode;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::StatusCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_gateway::backend::health_checker::{CheckStep, HealthChecker, StepTime};
use tokenweir_gateway::backend::{Backend, BackendDriver, Health};
use tokenweir_net::page_fetcher::{FetchError, PagePost};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::resilience::Availability;
use tokio::sync::OwnedSemaphorePermit;

/// The path that puts the engine to sleep. Level 1 keeps the weights in the memory of the host. After level 2,
/// the engine would have to load them again.
const SLEEP_PATH: &str = "/sleep?level=1";
const WAKE_PATH: &str = "/wake_up";
/// Time after which the gateway repeats the wake request to an engine that still sleeps.
const WAKE_INTERVAL: Duration = Duration::from_secs(10);

/// The state of the sleep mode of one backend in its health checker.
#[derive(Debug)]
struct SleepStep {
    mode: SleepMode,
    /// The last time at which the engine had work.
    busy_at: Instant,
    /// `None`: the engine is not falling asleep.
    falling_asleep: Option<FallingAsleep>,
    /// Time of the last request that asked the engine to wake. `None`: no such request since the last start of
    /// the server.
    woken_at: Option<Instant>,
    /// Whether the engine has refused to sleep since the last start of the server.
    refuses: bool,
}

/// An engine falls asleep: the backend gets no requests, and no other engine falls asleep. Dropping the value ends
/// both, also if the health checker ends meanwhile.
#[derive(Debug)]
struct FallingAsleep {
    backend: Arc<Backend>,
    _permit: OwnedSemaphorePermit,
}

impl FallingAsleep {
    fn new(backend: &Arc<Backend>, permit: OwnedSemaphorePermit) -> Self {
        backend.withdraw(Some(Availability::Asleep));
        Self {
            backend: backend.clone(),
            _permit: permit,
        }
    }
}

impl Drop for FallingAsleep {
    fn drop(&mut self) {
        self.backend.withdraw(None);
    }
}

impl BackendDriver for SleepMode {
    fn check_step(&self) -> Option<Box<dyn CheckStep>> {
        Some(Box::new(SleepStep::new(self.clone())))
    }
}

impl CheckStep for SleepStep {
    fn reset(&mut self) {
        self.woken_at = None;
        self.refuses = false;
    }

    fn time(&self) -> StepTime {
        StepTime::AfterCheck
    }

    fn run<'a>(&'a mut self, checker: &'a mut HealthChecker) -> BoxFuture<'a, ()> {
        self.update(checker).boxed()
    }
}

impl SleepStep {
    fn new(mode: SleepMode) -> Self {
        let busy_at = clock::now();
        Self {
            mode,
            busy_at,
            falling_asleep: None,
            woken_at: None,
            refuses: false,
        }
    }

    /// Wakes the engine if requests wait for it, or puts it to sleep if it is idle.
    async fn update(&mut self, checker: &mut HealthChecker) {
        let settings = *lock(&self.mode.settings);
        let now = clock::now();
        let backend = checker.backend.clone();
        let Some(facet) = backend.facets.get::<SleepFacet>() else {
            return;
        };
        let state = backend.health.state();
        let is_asleep = state.engine_availability() == Some(Availability::Asleep);
        if is_asleep && self.falling_asleep.is_none() {
            self.busy_at = now;
            if facet.is_wake_requested.get() && settings.wake {
                self.wake(facet, checker, now).await;
            }
            return;
        }
        if state.health == Health::Up && !is_asleep {
            facet.is_wake_requested.set(false);
        }
        let load = state.sample.map(|sample| sample.load).unwrap_or_default();
        let is_idle = checker.is_idle();
        if !is_idle {
            self.busy_at = now;
        }
        let idle_time = now.saturating_duration_since(self.busy_at);
        let is_due = settings.wake && settings.idle.is_some_and(|idle| idle_time >= idle);
        // Only an engine whose metrics show whether it sleeps is put to sleep.
        let may_sleep =
            state.health == Health::Up && load.is_asleep() == Some(false) && !self.refuses;
        if is_idle && may_sleep && is_due {
            self.fall_asleep(facet, checker).await;
        } else {
            self.falling_asleep = None;
        }
    }

    async fn wake(&mut self, facet: &SleepFacet, checker: &mut HealthChecker, now: Instant) {
        let is_recent = |at| now.saturating_duration_since(at) < WAKE_INTERVAL;
        checker.interval = checker.context.settings.min_interval;
        if self.woken_at.is_some_and(is_recent) {
            return;
        }
        self.woken_at = Some(now);
        let backend = &checker.backend.identity.id;
        tracing::info!(%backend, "waking the engine of the backend: requests wait for it");
        match post(checker, WAKE_PATH).await {
            // A large engine takes longer to wake than the timeout, so a timeout does not count as a failure.
            Ok(StatusCode::OK) | Err(FetchError::Timeout { .. }) => lock(&facet.counts).wakes += 1,
            result => {
                let answer = describe(&result);
                tracing::warn!(backend = %checker.backend.identity.id, answer, "the backend did not wake its engine: another sleeping backend may be woken");
                // Clearing the flag lets another sleeping backend with the model be woken.
                facet.is_wake_requested.set(false);
            }
        }
        checker.scrape_backoff_until = clock::now();
    }

    /// Puts the engine to sleep in two health checks. From the first check on, the backend gets no new
    /// requests. If a request still reaches the backend, the second check finds it busy, and the engine
    /// stays awake.
    async fn fall_asleep(&mut self, facet: &SleepFacet, checker: &mut HealthChecker) {
        checker.interval = checker.context.settings.min_interval;
        if self.falling_asleep.is_none() {
            // If there is no permit, another engine is falling asleep.
            if let Ok(permit) = self.mode.permits.clone().try_acquire_owned() {
                self.falling_asleep = Some(FallingAsleep::new(&checker.backend, permit));
                checker.scrape_backoff_until = clock::now();
            }
            return;
        }
        match post(checker, SLEEP_PATH).await {
            Ok(StatusCode::OK) => {
                let backend = &checker.backend.identity.id;
                tracing::info!(%backend, "the engine of the backend was put to sleep: it was idle");
                lock(&facet.counts).sleeps += 1;
                checker.scrape_at_once().await;
            }
            // The engine needs longer than the timeout. The next metrics pages show when it sleeps.
            Err(FetchError::Timeout { .. }) => return,
            result => {
                let answer = describe(&result);
                tracing::warn!(backend = %checker.backend.identity.id, answer, "the engine cannot be put to sleep: it needs --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1");
                self.refuses = true;
            }
        }
        self.falling_asleep = None;
    }
}

async fn post(checker: &mut HealthChecker, path: &'static str) -> Result<StatusCode, FetchError> {
    let post = PagePost {
        body: bytes::Bytes::new(),
        header: None,
    };
    checker
        .fetcher
        .post(path, &post)
        .await
        .map(|(status, _)| status)
}

fn describe(result: &Result<StatusCode, FetchError>) -> String {
    match result {
        Ok(status) => format!("status {}", status.as_u16()),
        Err(error) => error.describe(),
    }
}
