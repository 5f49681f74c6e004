//! The backends: their addresses, their health and load, the pool that picks among them, and the
//! routes from models to backends.

#[expect(clippy::module_inception, reason = "the file has the type that the folder is about")]
mod backend;
pub mod cache_map;
pub mod capacity_notifier;
mod drain;
mod health;
pub mod health_checker;
mod identity;
pub mod kv_events;
mod lease;
mod load;
pub mod peers;
pub mod pool;
mod pool_membership;
pub mod ranks;
mod recent_times;
pub mod routes;
mod state;
mod stream_profile;
pub mod tasks;

pub use backend::Backend;
pub use drain::{Drain, DrainInitiator};
pub use health::BackendHealth;
pub(crate) use health::MEDIA;
pub use health_checker::supervisor::HealthCheckSupervisor;
pub use identity::{BackendIdentity, BackendSettings};
pub use lease::Lease;
pub use load::BackendLoad;
pub use pool::backend_pool::{PoolSettings, PoolUpdate};
pub use pool::readiness::{BackendAvailability, Readiness};
pub use ranks::RankStatus;
pub use routes::model_labels::DEFAULT_MAX_MODEL_LABELS;
pub use state::{BackendState, FrontEnd, Health, LoadSample, SleepSettings};
