//! KV events of backends: which blocks their prefix caches contain, and which of these blocks
//! contain the text of a prompt. Routing reads the result. No request waits for this module.
//!
//! One task for each backend receives the events (`drivers/kv_events.rs`). One task for the
//! gateway learns from requests that have ended (`learner.rs`). The modules of `tokenweir_kv_events`
//! describe how both tasks work.

pub(crate) mod backend_cache;
mod followed_request;
mod key_space;
mod knowledge;
mod learner;
mod lookup;
mod rank_sink;
pub mod rows;
pub(crate) mod settings;
pub(crate) mod sources;

pub use backend_cache::{BackendCache, CacheStatus, KvEventsFacet};
pub(super) use followed_request::FollowedBlocks;
pub use knowledge::{CacheKnowledge, LearningCounts};
pub(crate) use learner::start as start_learner;
pub(super) use lookup::CacheLookup;
pub(crate) use rank_sink::RankSink;
pub use settings::{KvEventSource, KvEventsSettings};

#[cfg(test)]
pub(crate) mod tests;
