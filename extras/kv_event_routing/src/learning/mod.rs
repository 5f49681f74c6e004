//! Learns from the KV events of all backends and from the requests that have ended.

mod key_space;
mod knowledge;
mod learner;

pub(crate) use key_space::KeySpace;
pub(crate) use knowledge::EndedRequest;
pub use knowledge::{CacheKnowledge, LearningCounts};
pub(crate) use learner::start as start_learner;
