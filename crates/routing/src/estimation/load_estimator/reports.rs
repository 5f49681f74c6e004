//! The load reports of the backend, and the estimates that the load estimator takes from them.

use super::super::load_report::LoadReport;
use super::super::reservation::LocalLoad;
use super::LoadEstimator;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl LoadEstimator {
    /// Age at which a load report has the weight ½ in the estimates.
    pub fn horizon(&self) -> Duration {
        Duration::try_from_secs_f64(self.horizon.get()).unwrap_or(Duration::MAX)
    }

    /// Changes the age at which a load report has the weight ½ in the estimates.
    pub fn set_horizon(&self, horizon: Duration) {
        // With a horizon of 0, even a new report would have no weight.
        self.horizon.set(horizon.as_secs_f64().max(f64::EPSILON));
    }

    /// Maximum number of requests that the engine has run at once since its start, as far as reports and
    /// streams of this gateway show.
    pub fn most_running(&self) -> u32 {
        self.most_running.load(Ordering::Relaxed)
    }

    /// Stores a report. `at`: time of the scrape. `local_load`: local load at that time.
    pub fn on_report(&self, report: &LoadReport, local_load: &LocalLoad, at: Instant) {
        if self.last_report.set(report, local_load, self.seconds(at)) {
            self.pending_outputs.on_progress();
        }
        self.most_running
            .fetch_max(report.running as u32, Ordering::Relaxed);
        self.token_gaps
            .on_report(report.token_gaps, self.seconds(at));
    }

    /// Resets the state that a restart of the backend invalidates: prefix table, batch size and gaps.
    pub fn on_restart(&self) {
        self.most_running.store(0, Ordering::Relaxed);
        self.token_gaps.forget();
        if let Some(table) = self.prefix_table.get() {
            table.clear();
        }
    }
}
