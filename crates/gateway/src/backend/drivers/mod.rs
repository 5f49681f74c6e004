//! What the optional parts of a backend do in the background. This file alone lists them; `supervisor.rs` owns
//! all background tasks of backends.

mod exchange;
mod kv_events;
mod rank_probe;
mod sleep;
pub(super) mod supervisor;

use crate::backend::Backend;
use crate::backend::facets::kv_events::start_learner;
use crate::backend::health_checker::{CheckContext, HealthChecker};
use crate::backend::pool::BackendPool;
use std::sync::Arc;
use tokenweir_net::supervise::SupervisedTask;

/// Background tasks of optional parts. They end when the value is dropped.
type FacetTasks = Vec<SupervisedTask>;

/// Starts the tasks that the optional parts run once for all backends of a pool.
fn start_pool_tasks(pool: &Arc<BackendPool>) -> FacetTasks {
    let learner = start_learner(&pool.facets.kv_events);
    exchange::start(pool).into_iter().chain([learner]).collect()
}

/// Starts the tasks that the optional parts run for one backend.
fn start_backend_tasks(backend: &Arc<Backend>, context: &CheckContext) -> FacetTasks {
    kv_events::start(backend, context).into_iter().collect()
}

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
