//! Limits of memory that several parties, such as clients, share. Bytes are counted for each use (such as one
//! buffered response), for all uses of one party, and for all parties together.

use crate::atomic::AtomicCount;
use std::sync::Arc;

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

/// The bytes of memory that one use takes, such as a buffered response. Dropping a charge subtracts its bytes from
/// the count of its party and from the total.
#[derive(Debug, Default)]
pub struct Charge {
    bytes: usize,
    party: Arc<AtomicCount>,
    total: Arc<AtomicCount>,
}

impl Charge {
    /// Creates a charge of zero bytes. `party` counts the bytes of all uses of the party, and `total` those
    /// of all parties.
    pub fn new(party: Arc<AtomicCount>, total: Arc<AtomicCount>) -> Self {
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
        if !self.party.add_within(bytes, limits.party) {
            return Err(ExceededLimit::Party);
        }
        if !self.total.add_within(bytes, limits.total) {
            self.party.sub(bytes);
            return Err(ExceededLimit::Total);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Adds bytes to the counts of this use, of its party and of all parties without a check of the limits. The
    /// gateway charges bytes in this way if it forwards them and does not keep them.
    pub fn add_passing(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.party.add(bytes);
        self.total.add(bytes);
    }

    /// Subtracts bytes from the counts of this use, of its party and of all parties.
    pub fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.party.sub(bytes);
        self.total.sub(bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}
