//! Groups of prompts in one prefix cache. The prompts of a group begin with the same text. For each group:
//! how many blocks the cache has of it, and which other groups evicted its blocks.
//!
//! [`PrefixGroups`] counts for a cache whose blocks are known from events. [`ModelledCache`] models the
//! cache of an engine without events from the prompts that were sent to it.

mod evicted_blocks;
mod group_number;

mod prefix_groups;

mod modelled_cache;

pub use group_number::{FreedGroups, GroupNumber};
pub use modelled_cache::{ModelledCache, UsedPrompt};
pub use prefix_groups::{EvictionCounts, GroupCounts, PrefixGroups};
