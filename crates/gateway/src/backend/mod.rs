//! The backends: their addresses, health and load, the pool that picks among them, and the routes from models
//! to backends.

#[expect(
    clippy::module_inception,
    reason = "the file has the type that the folder is about"
)]
mod backend;
pub mod capacity_notifier;
mod drain;
mod drivers;
pub mod facets;
mod health;
pub mod health_checker;
mod identity;
mod lease;
mod load;
pub mod pool;
mod pool_membership;
mod recent_times;
pub mod routes;
mod state;
mod stream_profile;

pub use backend::Backend;
pub use drain::{Drain, DrainInitiator};
pub use drivers::supervisor::HealthCheckSupervisor;
pub use drivers::{BackendDriver, BackendDrivers};
pub use health::BackendHealth;
pub(crate) use health::MEDIA;
pub use identity::{BackendIdentity, BackendSettings};
pub use lease::Lease;
pub use load::BackendLoad;
pub use pool::backend_pool::{PoolSettings, PoolUpdate};
pub use pool::readiness::{BackendAvailability, Readiness};
pub use routes::model_labels::DEFAULT_MAX_MODEL_LABELS;
pub use state::{BackendState, FrontEnd, Health, LoadSample};
