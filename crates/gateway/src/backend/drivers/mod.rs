//! The background work of options for backends. `supervisor.rs` owns all background tasks of backends.

pub(super) mod supervisor;

use crate::backend::Backend;
use crate::backend::health_checker::{CheckContext, CheckStep};
use crate::backend::pool::BackendPool;
use std::sync::Arc;
use tokenweir_net::supervise::SupervisedTask;

/// The background work of one option. Each method has a default, so a driver implements only what it needs.
pub trait BackendDriver: Send + Sync {
    /// Starts the task that the option runs once for all backends of a pool.
    fn start(&self, _pool: &Arc<BackendPool>) -> Option<SupervisedTask> {
        None
    }

    /// Starts the task that the option runs for one backend.
    fn start_for(
        &self,
        _backend: &Arc<Backend>,
        _context: &Arc<CheckContext>,
    ) -> Option<SupervisedTask> {
        None
    }

    /// The step that the option adds to each health check of a backend. `None`: the option has no step.
    fn check_step(&self) -> Option<Box<dyn CheckStep>> {
        None
    }
}

/// The background work of all options.
pub type BackendDrivers = Vec<Arc<dyn BackendDriver>>;
