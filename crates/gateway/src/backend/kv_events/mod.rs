//! KV events of backends: which blocks their prefix caches contain, and which of these blocks
//! contain the text of a prompt. Routing reads the result. No request waits for this module.
//!
//! One task for each backend receives the events (`tasks/kv_event_receiver.rs`). One task for the
//! gateway learns from requests that have ended (`learner.rs`). The modules of `tokenweir_kv_events`
//! describe how both tasks work.

pub(super) mod backend_cache;
mod followed_request;
mod key_space;
pub(super) mod knowledge;
mod learner;
mod lookup;
pub(super) mod rank_cache;
pub mod rows;
pub(super) mod settings;
pub(super) mod sources;

pub use backend_cache::{BackendCache, CacheStatus};
pub(super) use followed_request::FollowedRequest;
pub use knowledge::{CacheKnowledge, LearningCounts};
pub(super) use learner::start as start_learner;
pub(super) use lookup::CacheLookup;
pub use settings::{KvEventSource, KvEventsSettings};

#[cfg(test)]
pub(super) mod tests;
