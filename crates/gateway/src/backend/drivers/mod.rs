//! What the optional parts of a backend do in the background. This file alone lists them; `supervisor.rs` owns
//! all background tasks of backends.

mod rank_probe;
mod sleep;
pub(super) mod supervisor;

use crate::backend::health_checker::HealthChecker;

impl HealthChecker {
    /// The steps of the optional parts during a check of a backend that answers.
    pub(in crate::backend) async fn check_facets(&mut self) {
        self.number_ranks().await;
    }

    /// The steps of the optional parts after each check of the backend.
    pub(in crate::backend) async fn run_facets(&mut self) {
        self.update_sleep().await;
    }
}
