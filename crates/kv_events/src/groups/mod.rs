//! Groups of prompts in one prefix cache. All prompts of a group begin with the same text. The module counts
//! how many blocks of each group the cache has, and which other groups evicted blocks of the group.
//!
//! [`PrefixGroups`] keeps these counts. The events of an engine show which blocks it stores and
//! removes. [`ModelledCache`] models the cache of an engine without events from the prompts that
//! were sent to it.

mod evicted_blocks;
mod group_number;

mod prefix_groups;

mod modelled_cache;

pub use group_number::{FreedGroups, GroupNumber};
pub use modelled_cache::{ModelledCache, UsedPrompt};
pub use prefix_groups::{EvictionCounts, GroupCounts, PrefixGroups};
