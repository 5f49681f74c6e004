//! The sessions whose contexts fit into the KV caches, and the rule which turns may run. The option `sessions` of the
//! gateway and `tokenweir-lab` use it.

mod block_table;
mod evictions;
mod growth;
mod prompt_ends;
mod return_times;
mod turn;
mod working_set;

pub use block_table::ContextId;
pub use turn::{Turn, TurnKind, TurnTokens};
pub use working_set::{Need, WorkingSet};
