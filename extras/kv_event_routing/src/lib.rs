//! Routing by KV events of backends: which blocks their prefix caches contain, and which of these blocks
//! contain the text of a prompt. No request waits for this crate.
//!
//! One task for each backend receives the events (`receipt`). One task for the gateway learns from requests
//! that have ended (`learning/learner.rs`). The modules of `tokenweir_kv_events` describe how both tasks work.

mod backend_cache;
mod facet;
mod followed_request;
mod learning;
mod lookup;
mod option;
mod receipt;
pub mod rows;
mod settings;

pub use backend_cache::{BackendCache, CacheStatus};
pub use facet::KvEventsFacet;
pub use learning::{CacheKnowledge, LearningCounts};
pub use option::KvEventsOption;
pub use settings::TASK;
pub use settings::{KvEventSource, KvEventsSettings};

#[cfg(test)]
mod tests;
