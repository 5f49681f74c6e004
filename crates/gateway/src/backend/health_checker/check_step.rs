//! Runs the steps of options inside the health checker of a backend.

use super::{CheckStep, HealthChecker, StepTime};
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_protocol::clock;

impl HealthChecker {
    /// Runs the steps that are due at `time`. The checker takes a step out of its list while the step runs,
    /// because the step may use the checker.
    pub(super) async fn run_steps(&mut self, time: StepTime) {
        for index in 0..self.steps.len() {
            let step = self.steps[index].take_if(|step| step.time() == time);
            let Some(mut step) = step else { continue };
            step.run(self).await;
            self.steps[index] = Some(step);
        }
    }

    pub(super) fn each_step(&mut self, call: impl FnMut(&mut Box<dyn CheckStep>)) {
        self.steps.iter_mut().flatten().for_each(call);
    }

    /// Whether the backend has no requests, neither from this gateway nor from others as far as the engine
    /// reports.
    pub fn is_idle(&self) -> bool {
        let load = self.backend.health.state().engine_load();
        self.backend.load.in_flight() == 0
            && load.is_idle() == Some(true)
            && !self.has_load_changed
            && self.context.pool.capacity_notifier.waiting_requests() == 0
    }

    /// Scrapes the metrics regardless of the backoff.
    pub async fn scrape_at_once(&mut self) {
        self.scrape_backoff_until = clock::now();
        self.scrape().await;
    }

    /// Fetches the metrics page once more for a running step. `read` gets the page as [`CheckStep::read_page`]
    /// does.
    pub async fn read_metrics(
        &mut self,
        read: impl FnMut(&[u8], Option<&EngineLoad>),
    ) -> Result<EngineLoad, ScrapeError> {
        self.metrics_page.fetch(&mut self.fetcher, read).await
    }
}
