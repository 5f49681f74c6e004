//! The estimated load and speed of one backend: from the requests of this gateway, from the metrics that the
//! backend reports, and from the times and token counts of its responses.
//!
//! `docs/benchmarks/routing.md`, "Estimates", states what removing each estimate and constant changes. Most change
//! nothing in the laboratory. They remain for cases that it lacks: engines without a prefix cache, with other
//! tokenizers, with few slots or at a standstill, clients that bypass the gateway, and scrapes every 5 s.

mod cached_tokens;
mod learned_estimates;
mod length_refusals;
mod limits;
mod load_estimator;
mod load_report;
mod other_backlogs;
mod pending_outputs;
mod prefill_cost;
mod reservation;

pub use cached_tokens::{CachedSource, KnownPrefix};
pub use learned_estimates::LearnedEstimates;
pub use load_estimator::LoadEstimator;
pub use load_estimator::remote_prefill::PredictedLeg;
pub use load_report::{LoadReport, ReportedLoad, TokenGapSum};
pub use other_backlogs::MAX_PEERS;
pub use prefill_cost::PrefillCost;
pub use reservation::{LocalLoad, Reservation};
