//! Failure handling: failover of requests, availability and circuit breaking of backends. This module reads no
//! clock. Times are arguments.

mod availability;
mod circuit_breaker;
mod down_kind;
mod failure_kind;
mod recent_cuts;
mod recent_outcomes;

pub use availability::Availability;
pub use circuit_breaker::{BreakerState, CircuitBreaker, CircuitBreakerSettings};
pub use down_kind::DownKind;
pub use failure_kind::{BreakerAction, FailoverPolicy, FailureKind};
pub use recent_cuts::RecentCuts;
