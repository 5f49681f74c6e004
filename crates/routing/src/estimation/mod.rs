//! The estimated load and speed of one backend: from the requests of this gateway, from the metrics that the
//! backend reports, and from the times and token counts of its responses.
//!
//! Change of the mean goodput, in percentage points with its 95 % interval, if one of these estimates is
//! removed. Measured in the 78 setups of `tokenweir-lab tournament` with traffic seeds 21 to 24 (the cost of
//! prefill: 21 to 28), one gateway and scrapes every 100 ms:
//!
//! - learned cost of prefill ([`PrefillCost`]): −0.4 [−1.3, +0.5]; −2.8 in unequal fleets, +0.8 in others,
//!   where engines are equal and only the estimates differ
//! - learned tokens per byte −0.1 [−0.7, +0.4], output tokens 0.0 [−0.3, +0.3], retention of the cache 0.0
//!   [−0.2, +0.1]
//! - not learning prefill from requests that may have waited for a slot +0.2 [−0.1, +0.6]
//! - less weight on old reports than on local load +0.1 [−0.1, +0.4], requests sent since the report, added to
//!   the waiting ones +0.3 [−0.1, +0.7], and in the KV usage +0.1 [−0.2, +0.4]
//!
//! The estimates remain for cases that these setups lack: engines without a prefix cache, with other
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
pub use load_estimator::remote_prefill::PredictedLeg;
pub use load_estimator::{LoadEstimator, ReportedQueues};
pub use load_report::{LoadReport, ReportedLoad, TokenGapSum};
pub use other_backlogs::MAX_PEERS;
pub use prefill_cost::PrefillCost;
pub use reservation::{LocalLoad, Reservation};
