//! Routing policies: pure functions from a request and a snapshot of the candidates to a backend. The crate
//! also contains the queue of [`admission`], the working set of [`sessions`] and the circuit breakers of
//! [`resilience`].
//!
//! A policy holds no lock, reads no clock and has no random number generator: the random seed is part of
//! [`RoutingRequest`]. Equal inputs give equal choices.
//!
//! The snapshot has one [`Candidate`] per backend: the estimate of its [`LoadEstimator`] for this prompt at
//! this time. The gateway and `tokenweir-lab replay` use the same estimators and policies.

pub mod admission;
mod candidate;
mod estimation;
mod hash;
mod imputation;
mod policies;
mod policy;
mod policy_input;
mod prefixes;
pub mod resilience;
mod routing_context;
mod sampling;
pub mod saturation;
pub mod sessions;
pub mod shares;

pub use candidate::Candidate;
pub use estimation::{
    CachedSource, KnownPrefix, LearnedEstimates, LoadEstimator, LoadReport, LocalLoad, MAX_PEERS,
    PredictedLeg, PrefillCost, ReportedLoad, Reservation, TokenGapSum,
};
pub use hash::{mix, rendezvous_score, unit};
pub use imputation::impute_missing_estimates;
pub use policies::kv_aware;
pub use policy::{PANIC, Policy, PolicyKind, REASONS};
pub use policy_input::{PolicyChoice, RoutingRequest};
pub use prefixes::{PromptFingerprint, prefix_table};
pub use routing_context::RoutingContext;
pub use sampling::CandidateSampler;

#[cfg(test)]
mod tests;
