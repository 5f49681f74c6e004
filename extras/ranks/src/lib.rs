//! Makes the data-parallel ranks of a backend targets of routing. Each rank has its own load, its own sent
//! prompts and its own prefix cache.

mod facet;
mod numbering;
mod option;
mod probe;
mod rank_load;
pub mod rows;

pub use facet::{RankFacet, RankStatus, Ranks};
pub use probe::RankProbes;
