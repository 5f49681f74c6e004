//! The cache map: which groups of prompts fill the prefix cache of which backend, and which groups
//! evict each other. The prompts of a group begin with the same text block of 512 bytes.
//!
//! The map gets the records of ended requests in batches. No request waits for the map, and routing
//! does not read the map. For a backend whose KV events are exact, the events show the blocks. For
//! any other backend the map models the cache from the prompts that this gateway sent.

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
