//! Scrapes the metrics of a backend. A part of the health checker.

use super::engine_identity::PageOrigin;
use super::engine_progress::EngineProgress;
use super::evidence::ScrapeResult;
use super::{HealthChecker, scrape_interval};
use crate::backend::facets::BackendFacet;
use crate::backend::state::FrontEnd;
use crate::backend::{Backend, Health, LoadSample};
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::{EngineKind, EngineLoad};
use tokenweir_engine::engine_metrics::{self, EngineMetricSet, ScrapeError};
use tokenweir_protocol::clock;
use tokenweir_routing::{LoadReport, LocalLoad};

impl HealthChecker {
    /// Scrapes the metrics, except during the backoff after a slow scrape.
    pub(super) async fn scrape(&mut self) -> ScrapeResult {
        let scraped_at = clock::now();
        if scraped_at < self.scrape_backoff_until {
            return ScrapeResult::Skipped;
        }
        let local_load = self.backend.load.estimator.local_load();
        let backend = self.backend.clone();
        self.each_step(|step| step.before_scrape(&backend));
        let steps = &mut self.steps;
        let read = |page: &[u8], load: Option<&EngineLoad>| {
            steps
                .iter_mut()
                .flatten()
                .for_each(|step| step.read_page(page, load));
        };
        let load = self.metrics_page.fetch(&mut self.fetcher, read).await;
        self.set_backoff(scraped_at, load.err());
        let last_output = self.backend.load.last_output_at.get();
        let has_output = std::mem::replace(&mut self.last_output_at, last_output) != last_output;
        match load {
            Ok(load) => {
                let values = self.metrics_page.last.engine_values;
                self.engine_progress
                    .record_load(&load, values, has_output, scraped_at);
                self.on_load(&load, &local_load, scraped_at);
                ScrapeResult::Readable
            }
            Err(error) => {
                self.on_scrape_error(error);
                match error {
                    ScrapeError::Connect | ScrapeError::Timeout | ScrapeError::Truncated => {
                        ScrapeResult::Unanswered
                    }
                    _ => ScrapeResult::Unreadable,
                }
            }
        }
    }

    /// Sets when the next scrape may begin.
    fn set_backoff(&mut self, scraped_at: Instant, error: Option<ScrapeError>) {
        let now = clock::now();
        let took = now.saturating_duration_since(scraped_at);
        self.backend.load.on_page(took);
        self.context
            .scrape_observer
            .on_scrape(&self.backend, took, error);
        // The duration of a failed scrape does not show how long the backend takes to render the page.
        let max_backoff = if error.is_none() {
            Duration::MAX
        } else {
            self.context.settings.max_interval
        };
        self.scrape_backoff_until = now + scrape_interval::backoff(took).min(max_backoff);
    }

    fn on_load(&mut self, load: &EngineLoad, local_load: &LocalLoad, scraped_at: Instant) {
        let state = self.backend.health.state();
        let previous = state.sample.as_ref();
        self.has_load_changed = previous.is_none_or(|previous| previous.load != *load);
        self.backend.record_load(load, local_load, scraped_at);
        let backend = self.backend.clone();
        self.each_step(|step| step.after_scrape(&backend, scraped_at));
        self.record_front_end();
        self.inspect_load(load, previous, scraped_at);
    }

    fn on_scrape_error(&mut self, error: ScrapeError) {
        self.has_load_changed = false;
        let previous = self.backend.health.state().metrics_error;
        // A failed scrape shows neither progress nor a standstill, so `/health` alone decides.
        self.engine_progress = EngineProgress::default();
        self.backend
            .update_state(|state| state.metrics_error = Some(error));
        if previous != Some(error) {
            self.log_scrape_error(error);
        }
    }

    /// Records which vLLM front end wrote the metrics page. Only the Rust front end writes OpenMetrics.
    fn record_front_end(&self) {
        let state = self.backend.health.state();
        let is_rust = self.metrics_page.last.is_openmetrics;
        let front_end = match state.server_kind() {
            Some(EngineKind::Vllm) if is_rust => Some(FrontEnd::Rust),
            Some(EngineKind::Vllm) => Some(FrontEnd::Python),
            _ => None,
        };
        if front_end != state.front_end {
            self.backend
                .update_state(|state| state.front_end = front_end);
        }
    }

    /// Detects a restart of the backend and other engines at its address. Logs missing metrics once after each
    /// start.
    fn inspect_load(
        &mut self,
        load: &EngineLoad,
        previous: Option<&LoadSample>,
        scraped_at: Instant,
    ) {
        let origin = previous.map_or(PageOrigin::Same, |previous| {
            let since = scraped_at.saturating_duration_since(previous.scraped_at);
            let wall_seconds = clock::unix_time().as_secs_f64();
            self.engine_identity
                .observe(load, &previous.load, since, wall_seconds, scraped_at)
        });
        match origin {
            PageOrigin::Same => {}
            PageOrigin::Restarted => self.on_restart(),
            PageOrigin::OtherEngine => self.on_other_engine(),
        }
        if !std::mem::replace(&mut self.findings.has_checked_metrics, true)
            && let Some(losses) = EngineMetricSet::from_load(load).losses(load.server)
        {
            let dialect = load.server.map_or("unknown", EngineKind::as_str);
            tracing::warn!(backend = %self.backend.identity.id, dialect, "backend lacks metrics: {losses}");
        }
    }

    fn on_restart(&mut self) {
        let backend = &self.backend.identity.id;
        tracing::info!(%backend, "backend restarted: the counters on its metrics page began again");
        self.backend.load.on_restart();
        self.backend
            .facets
            .each()
            .for_each(BackendFacet::on_restart);
        self.engine_progress = EngineProgress::default();
        self.reset_discovered_state();
    }

    fn on_other_engine(&mut self) {
        if self.backend.load.engine_switches() == 0 {
            tracing::warn!(
                backend = %self.backend.identity.id,
                "several engines answer at the address of the backend: name each engine as a backend of its own"
            );
        }
        self.backend.load.on_engine_switch();
        self.engine_progress = EngineProgress::default();
    }

    fn log_scrape_error(&self, error: ScrapeError) {
        let help =
            engine_metrics::scrape_error_hint(error, self.backend.health.state().server_kind());
        tracing::warn!(
            backend = %self.backend.identity.id,
            error = error.as_str(),
            help,
            "scrape failed: keeping the previous metrics of this backend"
        );
    }
}

impl Backend {
    /// Records that a health check has passed.
    pub fn mark_up(&self) {
        self.update_state(|state| state.set_health(Health::Up, None));
    }

    /// Records the load of a successful scrape that started at `scraped_at`. `local_load`: the load that
    /// this gateway put on the backend at that time.
    pub fn record_load(&self, load: &EngineLoad, local_load: &LocalLoad, scraped_at: Instant) {
        if let Some(report) = LoadReport::of(load) {
            let load = &self.load;
            load.estimator.on_report(&report, local_load, scraped_at);
            load.engine_queues.on_report(&report, scraped_at);
        }
        self.update_state(|state| {
            state.metrics_error = None;
            state.sample = Some(LoadSample {
                load: *load,
                scraped_at,
            });
            state.mean_prefill.record_load(load, scraped_at);
        });
    }
}
