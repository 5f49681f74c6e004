//! The contents of the prefix cache of one engine, and whether they can be trusted.

mod block_set;
mod cache_contents;
mod event_stream;

pub use block_set::{BlockSet, TooManyBlocks, UNKNOWN_DEPTH};
pub use cache_contents::{CacheContents, StoredChain};
pub use event_stream::{EventStream, StreamState, StreamStep};
