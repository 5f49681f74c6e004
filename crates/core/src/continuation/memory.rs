//! The memory of a continuation.

/// The memory that a stream may keep for its continuation.
pub trait MemoryBudget: std::fmt::Debug + Send + Sync {
    /// Takes more memory until the stream ends. `false`: there is none.
    fn take(&mut self, bytes: usize) -> bool;
}

/// No memory at all.
#[derive(Debug)]
pub(super) struct NoMemory;

impl MemoryBudget for NoMemory {
    fn take(&mut self, _: usize) -> bool {
        false
    }
}
