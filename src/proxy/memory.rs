//! How much memory the bodies of all requests take together. A request body is held until an answer
//! begins, because it may have to be sent again; without a bound, slow uploads on many connections
//! would take all memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use tokenweir_core::error::Error;

/// The memory of request bodies.
#[derive(Debug)]
pub struct BodyMemory {
    held: AtomicUsize,
    limit: AtomicUsize,
}

/// The bytes that are held for one request, until this is dropped.
#[derive(Debug)]
pub(super) struct HeldBytes<'a> {
    memory: &'a BodyMemory,
    bytes: usize,
}

impl Default for BodyMemory {
    /// Without a limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl BodyMemory {
    /// At most `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { held: AtomicUsize::new(0), limit: AtomicUsize::new(limit) }
    }

    /// Another limit from now on. What is held stays.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes that are held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Most bytes that may be held.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Begins to count for a request that holds nothing yet.
    pub(super) const fn begin(&self) -> HeldBytes<'_> {
        HeldBytes { memory: self, bytes: 0 }
    }
}

impl HeldBytes<'_> {
    /// Counts so many more bytes, or refuses the request if that is too much for all together.
    pub(super) fn add(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let before = self.memory.held.fetch_add(bytes, Ordering::Relaxed);
        // From here on they are given back when this is dropped.
        self.bytes += bytes;
        let is_over = before.saturating_add(bytes) > self.memory.limit();
        if is_over { Err(Error::BodyMemory) } else { Ok(()) }
    }

    /// Counts so many bytes in all, if they are more than before.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), Error> {
        self.add(bytes.saturating_sub(self.bytes))
    }
}

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_bounded_and_given_back() {
        let memory = BodyMemory::new(10);
        let (mut one, mut other) = (memory.begin(), memory.begin());
        assert_eq!((one.add(6), one.grow_to(6), other.add(4)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(one.grow_to(7), Err(Error::BodyMemory));
        drop(one);
        assert_eq!(memory.held(), 4);
        assert_eq!(other.grow_to(10), Ok(()));
        memory.set_limit(10);
        assert_eq!(memory.begin().add(1), Err(Error::BodyMemory));
        drop(other);
        assert_eq!(memory.held(), 0, "also what was refused");
    }
}
