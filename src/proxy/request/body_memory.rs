//! Limits the memory of all request bodies together.
//!
//! The gateway holds each request body until the response begins, because a retry may need the
//! body. Without a limit, slow uploads on many connections would take all memory of the process.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokenweir_core::error::GatewayError;

/// Counts the memory of all request bodies, and its limit.
#[derive(Debug)]
pub struct BodyMemory {
    used_bytes: AtomicUsize,
    limit_bytes: AtomicUsize,
}

/// The permit for the body memory of one request. Dropping the permit releases its bytes.
#[derive(Debug)]
pub(crate) struct BodyMemoryPermit<'a> {
    memory: &'a BodyMemory,
    /// Number of bytes that the request has in the shared body memory now.
    bytes: usize,
}

impl Default for BodyMemory {
    /// A counter without a limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl BodyMemory {
    /// A counter with a limit of `limit` bytes for all request bodies together.
    pub const fn new(limit: usize) -> Self {
        Self { used_bytes: AtomicUsize::new(0), limit_bytes: AtomicUsize::new(limit) }
    }

    /// Changes the limit, in bytes. Requests that already hold body memory keep it, even above the
    /// new limit.
    pub fn set_limit(&self, limit: usize) {
        self.limit_bytes.store(limit, Ordering::Relaxed);
    }

    /// Number of bytes that all request bodies use now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The limit on the memory of all request bodies, in bytes. `usize::MAX`: no limit.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// A permit for a new request, which uses no bytes yet.
    pub(crate) const fn empty_permit(&self) -> BodyMemoryPermit<'_> {
        BodyMemoryPermit { memory: self, bytes: 0 }
    }
}

impl BodyMemoryPermit<'_> {
    /// Counts `bytes` more bytes for this request. Fails if the bytes of all requests then exceed
    /// the limit.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), GatewayError> {
        if bytes == 0 {
            return Ok(());
        }
        let before = self.memory.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        // The bytes are counted even on failure. Dropping the permit releases them.
        self.bytes += bytes;
        let is_over = before.saturating_add(bytes) > self.memory.limit_bytes();
        if is_over { Err(GatewayError::BodyMemory) } else { Ok(()) }
    }

    /// Lowers the count of this permit to `bytes`, if it is higher.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let released = self.bytes.saturating_sub(bytes);
        self.memory.used_bytes.fetch_sub(released, Ordering::Relaxed);
        self.bytes -= released;
    }

    /// Raises the count of this permit to `bytes`, if it is lower. Fails as [`Self::add`] does.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), GatewayError> {
        self.add(bytes.saturating_sub(self.bytes))
    }
}

impl Drop for BodyMemoryPermit<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_limited_and_released() {
        let memory = BodyMemory::new(10);
        let (mut first, mut second) = (memory.empty_permit(), memory.empty_permit());
        assert_eq!((first.add(6), first.grow_to(6), second.add(4)), (Ok(()), Ok(()), Ok(())));
        first.shrink_to(8);
        first.shrink_to(5);
        assert_eq!((memory.used_bytes(), first.grow_to(6)), (9, Ok(())));
        assert_eq!(first.grow_to(7), Err(GatewayError::BodyMemory));
        drop(first);
        assert_eq!(memory.used_bytes(), 4);
        assert_eq!(second.grow_to(10), Ok(()));
        memory.set_limit(10);
        assert_eq!(memory.empty_permit().add(1), Err(GatewayError::BodyMemory));
        drop(second);
        assert_eq!(memory.used_bytes(), 0, "rejected bytes are released too");
    }
}
