//! Decoder of event batches in MessagePack: the array encoding of vLLM up to 0.22, and the map encoding of
//! later versions. The decoder borrows from the payload and allocates nothing.

mod batch;
mod event;
mod msgpack;
mod values;

pub use batch::EventBatch;
pub use event::{EventBlocks, KvEvent};
pub use msgpack::DecodeError;
pub use values::{BlockHash, BlockHashes, CacheKind, Medium};

#[cfg(test)]
mod tests;
