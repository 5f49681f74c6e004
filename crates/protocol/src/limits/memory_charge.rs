//! Limits of memory that several parties, such as clients, share. Bytes are counted for each use (such as one
//! buffered response), for all uses of one party, and for all parties together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The limits of memory that several parties share, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// The limit of one use, such as one buffered response.
    pub one: usize,
    /// The limit of all uses of one party, such as one client, together.
    pub party: usize,
    /// The limit of all uses of all parties together.
    pub total: usize,
}

/// The limit of [`MemoryLimits`] that more bytes would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceededLimit {
    /// The limit of one use, such as one buffered response.
    One,
    /// The limit of all uses of one party, such as one client, together.
    Party,
    /// The limit of all uses of all parties together.
    Total,
}

/// The bytes of memory that one use, such as one buffered response, takes. When a charge is dropped, its bytes
/// are subtracted from the counts of its party and of all parties.
#[derive(Debug, Default)]
pub struct Charge {
    bytes: usize,
    party: Arc<AtomicUsize>,
    total: Arc<AtomicUsize>,
}

impl Charge {
    /// Creates a charge of zero bytes. `party` counts the bytes of all uses of the party, and `total` those
    /// of all parties.
    pub fn new(party: Arc<AtomicUsize>, total: Arc<AtomicUsize>) -> Self {
        Self {
            bytes: 0,
            party,
            total,
        }
    }

    /// Adds bytes to the counts of this use, of its party and of all parties. If a count would exceed its
    /// limit, no count changes, and the error is this limit.
    pub fn add(&mut self, bytes: usize, limits: &MemoryLimits) -> Result<(), ExceededLimit> {
        if self.bytes + bytes > limits.one {
            return Err(ExceededLimit::One);
        }
        add_within(&self.party, bytes, limits.party).ok_or(ExceededLimit::Party)?;
        if add_within(&self.total, bytes, limits.total).is_none() {
            self.party.fetch_sub(bytes, Ordering::Relaxed);
            return Err(ExceededLimit::Total);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Adds bytes to the counts of this use, of its party and of all parties without a check of the limits. The
    /// gateway charges bytes in this way if it forwards them and does not keep them.
    pub fn add_passing(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.party.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes from the counts of this use, of its party and of all parties.
    pub fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.party.fetch_sub(bytes, Ordering::Relaxed);
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

fn add_within(used: &AtomicUsize, bytes: usize, limit: usize) -> Option<()> {
    let sum = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum)
        .ok()
        .map(|_| ())
}
