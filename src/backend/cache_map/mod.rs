//! The cache map: which groups of prompts fill the prefix cache of which backend, and which groups evict
//! each other. The prompts of a group begin with the same text block.
//!
//! The map gets the records of ended requests in batches. Nothing here runs in a request, and
//! routing does not read the map. For a backend whose KV events are exact, the map reads the blocks
//! from the events. For others it models the cache from the prompts that this gateway sent.

mod prompt_use;

mod backend_use;
mod group_key;

mod backend_groups;
mod map_state;

mod document;
mod evicting_pairs;

mod map;

pub use map::CacheMap;

#[cfg(test)]
mod tests;
