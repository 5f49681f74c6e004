//! The data-parallel ranks of one backend as targets of routing: each has its own load, its own sent
//! prompts and its own prefix cache. Connections, health and circuit breaker are those of the backend.

mod leased_rank;
pub(crate) mod numbering;
mod rank_check;
mod rank_set;
pub mod rows;

pub(super) use leased_rank::LeasedRank;
pub(super) use rank_check::RankCheck;
pub use rank_set::{DataParallelRanks, RankStatus};

/// The field of the request that a backend names when it refuses a rank.
pub(super) const REFUSED_FIELD: &[u8] = b"data_parallel_rank";
