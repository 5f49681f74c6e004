//! The estimated load and speed of one backend: from the requests of this gateway, from the metrics
//! that the backend reports, and from the times and token counts of its responses.

mod atomic_f64;
mod cached_tokens;
mod learned_estimates;
mod linear_cost;
mod load_estimator;
mod load_report;
mod peer_backlogs;
mod pending_outputs;
mod reservation;
mod sent_prompts;
mod slot_estimator;

pub use cached_tokens::{CachedSource, ResidentPrompt};
pub use learned_estimates::LearnedEstimates;
pub use linear_cost::PrefillCost;
pub use load_estimator::{LoadEstimator, ReportedQueues};
pub use load_report::{LoadReport, ReportedLoad};
pub use peer_backlogs::MAX_PEERS;
pub use reservation::{LocalLoad, Reservation, TokenCounts};
