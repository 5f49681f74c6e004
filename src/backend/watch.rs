//! The watcher of one replica: it looks at its health and its metrics, and now and then at its
//! models and its version, and publishes what it sees. One look at a time, so a slow replica is
//! never asked twice at once.

mod models;

use super::pace::{self, Signs};
use super::progress::Progress;
use super::wake::{Wake, wait};
use super::{Backend, Health, Sample, recent};
use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_core::dialect::{self, Load};
use tokenweir_core::signals::{self, ScrapeError, Signals};
use tokenweir_core::{clock, units};
use tokenweir_net::client::Client;
use tokenweir_net::fetch::{Failure, Fetcher};

/// How a replica is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Time between two looks at a replica under load. Of more than a thousand a second at the whole
    /// fleet each takes its share: with 1,000 replicas it is 1 s.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub min_interval: Duration,
    /// Time between two looks at one where nothing happens.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub max_interval: Duration,
    /// Longest wait for an answer.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub timeout: Duration,
    /// Longest page, in bytes.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::schema::Size")]
    pub max_page: usize,
}

impl Default for Settings {
    /// Every 100 ms under load, every 5 s when idle; 2 s and 4 MiB for an answer.
    fn default() -> Self {
        Self {
            min_interval: Duration::from_millis(100),
            max_interval: Duration::from_secs(5),
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
/// A replica whose metrics answer is asked for its health this often, or when a request failed there:
/// vLLM's metrics answer while its engine is dead.
const HEALTH_EVERY: Duration = Duration::from_secs(5);
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
    let mut watcher = Watcher::new(backend, client, settings, tally);
    loop {
        watcher.look().await;
        watcher.turn_window();
        // Only the first look sets it.
        let _ = watcher.backend.looked.set(());
        watcher.pause().await;
    }
}

struct Watcher {
    backend: Arc<Backend>,
    /// What the looks at all replicas are aligned to.
    origin: Instant,
    fetcher: Fetcher,
    settings: Settings,
    tally: Arc<dyn Tally>,
    /// Where its metrics are.
    metrics_path: &'static str,
    /// Whether they may be somewhere else.
    may_be_elsewhere: bool,
    /// Whether it has been said what its metrics lack.
    is_tested: bool,
    /// Failed looks in a row.
    failures: u32,
    /// When it last said that it is well. `None`: it is to be asked.
    well_at: Option<Instant>,
    models_at: Option<Instant>,
    /// Why some of its models are not served, as it was logged last.
    models_problem: models::Problem,
    window_at: Instant,
    /// Its metrics are left alone until then.
    rests_until: Instant,
    /// Whether the last two pages differ.
    has_changed: bool,
    progress: Progress,
    /// The pause before the next look, without jitter.
    interval: Duration,
}

impl Watcher {
    fn new(
        backend: Arc<Backend>,
        client: Client,
        settings: Settings,
        tally: Arc<dyn Tally>,
    ) -> Self {
        let (address, key) = (backend.address.clone(), backend.authorization.as_ref());
        let fetcher = Fetcher::new(client, address, key, settings.timeout, settings.max_page);
        let now = clock::now();
        Self {
            backend,
            origin: clock::origin(),
            fetcher,
            settings,
            tally,
            metrics_path: dialect::PATHS[0],
            may_be_elsewhere: true,
            is_tested: false,
            failures: 0,
            well_at: None,
            models_at: None,
            models_problem: models::Problem::default(),
            window_at: now,
            rests_until: now,
            has_changed: false,
            progress: Progress::default(),
            interval: settings.min_interval,
        }
    }

    fn turn_window(&mut self) {
        let now = clock::now();
        if now.saturating_duration_since(self.window_at) >= recent::WINDOW {
            self.window_at = now;
            self.backend.gaps.turn();
        }
    }

    /// Waits until it is time for the next look.
    async fn pause(&mut self) {
        let begun = clock::now();
        let Settings { min_interval, max_interval, .. } = self.settings;
        let least = pace::least(min_interval, self.backend.fleet_size());
        self.interval = pace::pause(self.interval, self.signs().strain(), least, max_interval);
        let since_origin = begun.saturating_duration_since(self.origin);
        let jittered = pace::jittered(self.interval, fastrand::f64());
        let pause = pace::aligned(since_origin, jittered).max(LEAST_PAUSE);
        match wait(&self.backend, pause, pace::jittered(least, fastrand::f64())).await {
            Wake::Time => {}
            Wake::Work => self.interval = least,
            Wake::Failure => {
                // That its metrics answer is no proof that it is well.
                self.well_at = None;
                // Failing requests ask for a look each; one in a while is enough.
                tokio::time::sleep_until((begun + LEAST_PAUSE).into()).await;
            }
        }
    }

    fn signs(&self) -> Signs {
        let state = self.backend.state();
        let load = state.sample.map(|sample| sample.load).unwrap_or_default();
        Signs {
            in_flight: self.backend.in_flight(),
            is_waiting: load.waiting.is_some_and(|waiting| waiting >= 1.0),
            kv_usage: load.kv_usage.unwrap_or(0.0),
            has_changed: self.has_changed,
            is_down: state.health != Health::Up,
        }
    }

    async fn look(&mut self) {
        let now = clock::now();
        self.backend.idle.close_unused(self.fetcher.idle(), now);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < HEALTH_EVERY;
        let is_well = self.well_at.is_some_and(is_recent);
        // Metrics that come in time say that it lives.
        if is_well && self.backend.state().health == Health::Up && self.scrape().await {
            self.ask_models().await;
            return self.check_progress();
        }
        let health = self.fetcher.get("/health").await.map(|(status, _)| status);
        match health {
            Ok(StatusCode::OK) => self.is_up().await,
            Ok(status) => self.is_down(&format!("/health answered {}", status.as_u16()), true),
            Err(Failure::Connect(reason)) => self.is_down(&reason, true),
            // It says nothing of the backend, so what is known of that holds.
            Err(Failure::Exhausted(problem)) => self.backend.is_unseen(&problem),
            Err(failure) => self.is_down(&format!("/health: {failure:?}"), false),
        }
    }

    async fn is_up(&mut self) {
        self.failures = 0;
        self.well_at = Some(clock::now());
        self.scrape().await;
        self.ask_models().await;
        if self.standstill().is_some() {
            return self.check_progress();
        }
        let was = self.backend.state().health;
        if was == Health::Down {
            self.backend.breaker.on_return(clock::now());
        }
        self.backend.update(|state| {
            state.health = Health::Up;
            state.reason = None;
        });
        self.backend.declared_down.send_replace(false);
        if was != Health::Up {
            tracing::info!(backend = %self.backend.id, "replica is up");
        }
    }

    /// An engine that is stuck says that it is well.
    fn check_progress(&mut self) {
        if let Some(standstill) = self.standstill() {
            let seconds = standstill.as_secs();
            self.put_down(&format!("it has requests and made no token for {seconds} s"));
        }
    }

    /// How long the engine has been stuck, if that is too long.
    fn standstill(&self) -> Option<Duration> {
        let limit = self.backend.breaker.settings().stuck_after?;
        Some(self.progress.standstill()).filter(|standstill| *standstill >= limit)
    }

    /// Its health check failed.
    fn is_down(&mut self, reason: &str, is_certain: bool) {
        self.failures += 1;
        let is_up = self.backend.state().health == Health::Up;
        if is_up && !is_certain && self.failures < PATIENCE {
            return;
        }
        self.progress = Progress::default();
        self.put_down(reason);
    }

    /// Takes it out of service. An engine that is stuck keeps its progress state: it stays down
    /// until a page shows progress.
    fn put_down(&mut self, reason: &str) {
        let was = self.backend.state().health;
        self.well_at = None;
        self.is_new();
        self.backend.update(|state| {
            state.health = Health::Down;
            state.reason = Some(reason.into());
        });
        self.backend.declared_down.send_replace(true);
        if was != Health::Down {
            tracing::warn!(backend = %self.backend.id, reason, "replica is down");
        }
    }

    /// Another version may come back, or have come.
    fn is_new(&mut self) {
        self.models_at = None;
        self.may_be_elsewhere = true;
        self.is_tested = false;
    }

    /// Asks for its metrics, unless it rests from them. Whether the replica answered.
    async fn scrape(&mut self) -> bool {
        let at = clock::now();
        if at < self.rests_until {
            return true;
        }
        let own = self.backend.ledger.own();
        let load = self.metrics().await;
        let now = clock::now();
        let took = now.saturating_duration_since(at);
        self.tally.scraped(&self.backend, took, load.err());
        match &load {
            Ok(load) => self.progress.on_load(load, at),
            // Without pages nothing is known of the engine's progress; its health check decides.
            Err(_) => self.progress = Progress::default(),
        }
        if let Some(report) = load.ok().and_then(|load| load.report()) {
            self.backend.ledger.on_report(&report, &own, at);
        }
        // A page that could not be used says nothing of what it costs to make one.
        let most = if load.is_ok() { Duration::MAX } else { self.settings.max_interval };
        self.rests_until = now + pace::rest(took).min(most);
        let state = self.backend.state();
        self.has_changed = match (&load, &state.sample) {
            (Ok(load), Some(before)) => *load != before.load,
            (Ok(_), None) => true,
            (Err(_), _) => false,
        };
        self.backend.update(|state| {
            state.metrics_error = load.err();
            if let Ok(load) = load {
                state.sample = Some(Sample { load, at });
                state.means.on_sample(&load, at);
            }
        });
        match load {
            Ok(load) => self.tell_load(&load, state.sample.as_ref().map(|before| &before.load)),
            Err(error) if state.metrics_error != Some(error) => self.tell_error(error),
            Err(_) => {}
        }
        !matches!(load, Err(ScrapeError::Connect | ScrapeError::Timeout | ScrapeError::Truncated))
    }

    async fn metrics(&mut self) -> Result<Load, ScrapeError> {
        let usual = self.metrics_path;
        let load = self.metrics_at(usual).await;
        let is_elsewhere = matches!(load, Err(ScrapeError::Status | ScrapeError::NotUnderstood));
        if is_elsewhere && std::mem::take(&mut self.may_be_elsewhere) {
            for path in dialect::PATHS.into_iter().filter(|path| *path != usual) {
                if let Ok(load) = self.metrics_at(path).await {
                    self.metrics_path = path;
                    return Ok(load);
                }
            }
        }
        load
    }

    async fn metrics_at(&mut self, path: &'static str) -> Result<Load, ScrapeError> {
        let (status, page) = self.fetcher.get(path).await?;
        if status != StatusCode::OK {
            return Err(ScrapeError::Status);
        }
        let load = Load::read(page);
        if load.is_understood() { Ok(load) } else { Err(ScrapeError::NotUnderstood) }
    }

    /// Tells people what the metrics lack, once for each start of the replica.
    fn tell_load(&mut self, load: &Load, before: Option<&Load>) {
        let backend = &self.backend.id;
        if before.is_some_and(|before| load.is_restart_of(before)) {
            tracing::info!(%backend, "replica has restarted: its counters began anew");
            self.backend.ledger.on_restart();
            self.progress = Progress::default();
            self.backend.stream_events.on_restart();
            self.is_new();
        }
        if !std::mem::replace(&mut self.is_tested, true)
            && let Some(losses) = Signals::of(load).losses(load.server)
        {
            let dialect = load.server.map_or("unknown", dialect::Server::as_str);
            tracing::warn!(backend = %self.backend.id, dialect, "metrics lack signals: {losses}");
        }
    }

    fn tell_error(&self, error: ScrapeError) {
        let help = signals::scrape_help(error, self.backend.state().server());
        let (backend, error) = (&self.backend.id, error.as_str());
        tracing::warn!(%backend, error, help, "metrics cannot be used; the last ones age");
    }
}
