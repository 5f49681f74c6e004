//! The health checker of one backend. It polls `/health` and `/metrics`, and less often `/v1/models` and
//! `/version`. It sends one request at a time, so a slow backend never gets two health checks at once.

mod check_step;
mod engine_identity;
mod engine_progress;
mod evidence;
mod metrics_page;
mod models;
mod scrape;
mod scrape_interval;
mod service_checks;
mod settings;
mod wake;

pub use settings::{CheckContext, ScrapeObserver, ScrapeSettings};

use super::state::DownCause;
use super::{Backend, Health, recent_times};
use engine_identity::EngineIdentity;
use engine_progress::EngineProgress;
use evidence::{HealthAnswer, ScrapeResult, Silence};
use futures_util::future::BoxFuture;
use http::StatusCode;
use metrics_page::MetricsPage;
use models::{ModelListRefresh, STALE_MODELS_REFRESH_INTERVAL};
use scrape_interval::BackendActivity;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::{self, EngineLoad};
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_net::page_fetcher::{FetchError, PageFetcher};
use tokenweir_protocol::clock;
use tokenweir_routing::resilience::Availability;
use wake::{WakeReason, wait_next_check};

/// Minimum time between two checks of a backend. Failed requests that ask for a check cannot shorten it.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Time between two requests for `/health` while scrapes succeed. A failed client request causes a
/// request for `/health` at once. Scrapes do not replace `/health`, because vLLM serves its metrics
/// even if its engine is dead.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The step of an option in the health checker of one backend. Each method with a default may be omitted.
pub trait CheckStep: Send {
    /// Forgets facts that may change with the next start of the server. Not called while the step runs.
    fn reset(&mut self) {}

    /// Called before each scrape, for example to read counters at the same time.
    fn before_scrape(&mut self, _backend: &Backend) {}

    /// Reads a metrics page, whose values are in `load`. `None`: the backend answered with an error.
    fn read_page(&mut self, _page: &[u8], _load: Option<&EngineLoad>) {}

    /// Records a successful scrape of the backend, which began at `scraped_at`.
    fn after_scrape(&mut self, _backend: &Backend, _scraped_at: Instant) {}

    /// When the step runs.
    fn time(&self) -> StepTime;

    /// Runs the step, which may send requests through the checker.
    fn run<'a>(&'a mut self, checker: &'a mut HealthChecker) -> BoxFuture<'a, ()>;
}

/// The moment at which the steps of options run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepTime {
    /// During a check of a backend that answers.
    Check,
    /// After each check, also of a backend that does not answer.
    AfterCheck,
}

/// Checks one backend in an endless loop, and keeps what it learned from earlier checks.
pub struct HealthChecker {
    /// The state and the settings that the health checkers of all backends share.
    pub context: Arc<CheckContext>,
    /// The checked backend.
    pub backend: Arc<Backend>,
    /// Fetches pages of the backend, such as `/health`, with the limits of `scrape`.
    pub fetcher: PageFetcher,
    metrics_page: MetricsPage,
    /// The run of consecutive probes that got no usable answer.
    silence: Silence,
    /// Number of consecutive scrapes that were answered with 503.
    unavailable_scrapes: u32,
    findings: Findings,
    /// The reason, asleep or paused, that was last logged for keeping requests from the engine. `None`: the
    /// engine works.
    logged_rest: Option<Availability>,
    /// Whether the backend has refused a connection since it was last healthy.
    has_refused: bool,
    /// When `/health` last passed. `None`: the next check requests `/health`.
    last_healthy_at: Option<Instant>,
    models: ModelListRefresh,
    /// Start of the current time window of the histogram of gaps between outputs.
    gap_window_started_at: Instant,
    /// The metrics are not scraped before this time.
    pub scrape_backoff_until: Instant,
    /// Whether the loads of the last two scrapes differ.
    has_load_changed: bool,
    /// The steps of the options. `None`: a running step.
    steps: Vec<Option<Box<dyn CheckStep>>>,
    engine_progress: EngineProgress,
    /// The engines that have answered at the address of the backend.
    engine_identity: EngineIdentity,
    /// Time of the most recent output of any response, as known at the last scrape. `None`: no response
    /// had output.
    last_output_at: Option<Instant>,
    /// The interval until the next check, without jitter.
    pub interval: Duration,
}

/// Facts about the server that the health checker has found since the server started.
#[derive(Default)]
struct Findings {
    /// Whether a scrape was checked for missing metrics.
    has_checked_metrics: bool,
    /// Whether the server has no endpoint that reports a paused engine.
    hides_pause: bool,
}

impl HealthChecker {
    pub(super) fn new(
        context: Arc<CheckContext>,
        backend: Arc<Backend>,
        steps: impl Iterator<Item = Box<dyn CheckStep>>,
    ) -> Self {
        let identity = &backend.identity;
        let key = identity.authorization.as_ref();
        let now = clock::now();
        Self {
            fetcher: context.fetcher(identity.address.clone(), key),
            metrics_page: MetricsPage::new(identity, &context),
            interval: context.settings.min_interval,
            context,
            backend,
            silence: Silence::default(),
            unavailable_scrapes: 0,
            findings: Findings::default(),
            logged_rest: None,
            has_refused: false,
            last_healthy_at: None,
            models: ModelListRefresh::default(),
            gap_window_started_at: now,
            scrape_backoff_until: now,
            has_load_changed: false,
            steps: steps.map(Some).collect(),
            engine_progress: EngineProgress::default(),
            engine_identity: EngineIdentity::default(),
            last_output_at: None,
        }
    }

    /// Checks the backend in an endless loop.
    pub(super) async fn run(mut self) {
        loop {
            self.check().await;
            self.run_steps(StepTime::AfterCheck).await;
            self.log_rest();
            self.rotate_gap_window();
            self.backend.health.on_check_completed();
            self.wait_until_next_check().await;
        }
    }

    fn rotate_gap_window(&mut self) {
        let now = clock::now();
        if now.saturating_duration_since(self.gap_window_started_at) >= recent_times::GAP_WINDOW {
            self.gap_window_started_at = now;
            self.backend.load.recent_gaps.rotate();
        }
    }

    /// Waits until the next health check is due: until the interval is over, or until the idle
    /// backend gets a request or a request to the backend fails.
    async fn wait_until_next_check(&mut self) {
        let started_at = clock::now();
        let ScrapeSettings {
            min_interval,
            max_interval,
            ..
        } = self.context.settings;
        let min_interval =
            scrape_interval::min_interval_for_pool(min_interval, self.context.pool.backend_count());
        self.interval = scrape_interval::next_interval(
            self.interval,
            self.activity().scrape_urgency(),
            min_interval,
            max_interval,
        );
        let since_origin = started_at.saturating_duration_since(self.context.alignment_origin);
        let jittered = scrape_interval::with_jitter(self.interval, fastrand::f64());
        let mut pause =
            scrape_interval::align_to_grid(since_origin, jittered).max(MIN_CHECK_INTERVAL);
        if self.backend.health.is_model_list_stale.get() {
            pause = pause.min(STALE_MODELS_REFRESH_INTERVAL);
        }
        match wait_next_check(
            &self.backend,
            pause,
            scrape_interval::with_jitter(min_interval, fastrand::f64()),
        )
        .await
        {
            WakeReason::IntervalElapsed => {}
            WakeReason::FirstRequest => self.interval = min_interval,
            WakeReason::RequestFailed => {
                // A successful scrape does not prove health, so `/health` is requested again.
                self.last_healthy_at = None;
                // Each failed request wakes this task, so the rate of checks is limited here.
                tokio::time::sleep_until((started_at + MIN_CHECK_INTERVAL).into()).await;
            }
        }
    }

    fn activity(&self) -> BackendActivity {
        let state = self.backend.health.state();
        let load = state.engine_load();
        BackendActivity {
            in_flight: self.backend.load.in_flight(),
            has_waiting_requests: load.waiting.is_some_and(|waiting| waiting >= 1.0),
            kv_usage: load.kv_usage.unwrap_or(0.0),
            has_changed: self.has_load_changed,
            is_down: state.health != Health::Up || state.is_paused,
        }
    }

    /// Scrapes the metrics. Requests `/health` too, unless it passed recently and the scrape succeeded.
    async fn check(&mut self) {
        let now = clock::now();
        self.backend
            .idle_pool
            .close_expired(self.context.client.timeouts.idle_connection, now);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < HEALTH_CHECK_INTERVAL;
        let was_healthy = self.last_healthy_at.is_some_and(is_recent);
        let is_up = self.backend.health.state().health == Health::Up;
        // If `/health` has passed recently, a timely scrape is sufficient.
        if was_healthy && is_up && !self.silence.has_begun() {
            if self.scrape().await != ScrapeResult::Unanswered {
                return self.check_service().await;
            }
            self.on_unanswered(now);
        }
        let sent_at = clock::now();
        let (path, health) = self.fetch_health().await;
        match HealthAnswer::of(path, health) {
            HealthAnswer::Healthy => self.on_healthy().await,
            HealthAnswer::Refused(reason) => {
                self.has_refused = true;
                self.set_down(DownCause::Other, &reason);
            }
            // The backend accepts connections again, but is not healthy yet.
            HealthAnswer::Failing(reason) if self.has_refused => {
                self.set_down(DownCause::Starting, &format!("it starts: {reason}"));
            }
            HealthAnswer::Failing(reason) => self.set_down(DownCause::Other, &reason),
            HealthAnswer::Silent(reason) => {
                self.on_unclear(sent_at, &reason, DownCause::Silent).await;
            }
            HealthAnswer::Unclear(reason) => {
                self.on_unclear(sent_at, &reason, DownCause::Other).await;
            }
            // Without a request, the check shows nothing about the backend.
            HealthAnswer::NotSent(problem) => self.backend.on_check_skipped(&problem),
        }
    }

    /// Checks a backend that answers probes: its models, the steps of options, and the progress of its engine.
    async fn check_service(&mut self) {
        // A silent backend gets no further requests here, because each would delay the next probe.
        if self.backend.health.state().metrics_error != Some(ScrapeError::Timeout) {
            self.models
                .refresh(&self.context.pool, &self.backend, &mut self.fetcher)
                .await;
        }
        self.run_steps(StepTime::Check).await;
        if self.is_pause_likely() {
            self.check_pause().await;
        }
        self.check_engine_progress();
        self.check_availability();
    }

    /// Requests `/health`, or the corresponding path of a Ray Serve proxy. Returns the path and the status.
    async fn fetch_health(&mut self) -> (&'static str, Result<StatusCode, FetchError>) {
        let mut status_of =
            async |path| (path, self.fetcher.get(path).await.map(|(status, _)| status));
        let is_missing = |(_, health): &(_, _)| matches!(health, Ok(StatusCode::NOT_FOUND));
        let started = clock::now();
        let health = status_of("/health").await;
        let took = clock::now().saturating_duration_since(started);
        self.backend.load.on_page(took);
        if !is_missing(&health) {
            return health;
        }
        let of_proxy = status_of(dialect::RAY_SERVE_HEALTH_PATH).await;
        if is_missing(&of_proxy) {
            health
        } else {
            of_proxy
        }
    }

    /// Scrapes a backend whose `/health` passed, and marks it up unless its engine is stuck.
    async fn on_healthy(&mut self) {
        self.silence.end();
        self.has_refused = false;
        self.last_healthy_at = Some(clock::now());
        self.scrape().await;
        self.models
            .refresh(&self.context.pool, &self.backend, &mut self.fetcher)
            .await;
        self.run_steps(StepTime::Check).await;
        self.check_pause().await;
        if self.excessive_standstill().is_some() {
            return self.check_engine_progress();
        }
        if self.check_availability() {
            return;
        }
        self.mark_up();
    }

    /// Marks the backend up. Its requests no longer fail over.
    fn mark_up(&self) {
        let previous = self.backend.health.state().health;
        if previous == Health::Down {
            self.backend.health.breaker.on_recovery(clock::now());
        }
        self.backend.mark_up();
        self.backend.health.set_declared_down(false);
        if previous != Health::Up {
            self.backend.health.log_up(&self.backend.identity.id);
        }
    }

    /// Records that a probe sent at `sent_at` got no usable answer.
    fn on_unanswered(&mut self, sent_at: Instant) {
        let last_output_at = self.backend.load.last_output_at.get();
        self.silence
            .on_unanswered(sent_at, last_output_at, clock::now());
    }

    /// Handles a request for `/health` that was sent at `sent_at` and got no usable answer. `first_cause`: the
    /// cause for a backend that has not been up yet.
    async fn on_unclear(&mut self, sent_at: Instant, reason: &str, first_cause: DownCause) {
        self.on_unanswered(sent_at);
        if self.silence.has_begun() {
            let sent_at = clock::now();
            match self.scrape().await {
                ScrapeResult::Readable if self.metrics_page.is_at_backend() => self.silence.end(),
                ScrapeResult::Unanswered => self.on_unanswered(sent_at),
                _ => {}
            }
        }
        let state = self.backend.health.state();
        match state.health {
            Health::Up if !self.silence.has_begun() => self.on_sign_of_life().await,
            Health::Up if !self.silence.is_down() => {}
            Health::Up => self.set_down(DownCause::Silent, reason),
            Health::Down if state.is_silent() && !self.silence.is_down() => {
                self.on_sign_of_life().await;
            }
            Health::Down if state.is_suspected() && !self.silence.is_down() => {}
            Health::Down if state.is_suspected() => self.set_down(DownCause::Silent, reason),
            Health::Unknown => self.set_down(first_cause, reason),
            // A backend that is down by an explicit answer is up again only when its health check passes.
            Health::Down => self.set_down(DownCause::Other, reason),
        }
    }

    /// Handles a sign of life (output or a readable metrics page) of a backend whose `/health` gives no usable
    /// answer.
    async fn on_sign_of_life(&mut self) {
        self.last_healthy_at = Some(clock::now());
        if self.excessive_standstill().is_none() {
            self.mark_up();
        }
        self.check_service().await;
    }

    /// Marks the backend down. Its open requests, including streams, may fail over to another backend.
    fn set_down(&mut self, cause: DownCause, reason: &str) {
        self.engine_progress = EngineProgress::default();
        self.last_healthy_at = None;
        self.reset_discovered_state();
        if cause == DownCause::Silent {
            self.silence.set_down();
        }
        self.backend.set_down(cause, reason);
        self.backend.health.set_declared_down(true);
    }

    /// Forgets values that may differ after a restart, when another version of the server may run.
    fn reset_discovered_state(&mut self) {
        self.models.expire();
        self.metrics_page.should_discover_path = true;
        self.backend.health.forget_unserved();
        self.backend.facets.forget_server();
        self.findings = Findings::default();
        self.each_step(|step| step.reset());
    }
}
