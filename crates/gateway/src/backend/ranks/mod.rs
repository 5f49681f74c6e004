//! The data-parallel ranks of one backend as targets of routing: each has its own load, its own sent
//! prompts and its own prefix cache. Connections, health and circuit breaker are those of the backend.

mod leased_rank;
pub(super) mod numbering;
mod rank_set;
pub mod rows;

pub(super) use leased_rank::LeasedRank;
pub use rank_set::RankStatus;
pub(super) use rank_set::{DataParallelRanks, Rank, RankPlace};
