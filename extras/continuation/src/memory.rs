//! Limits the memory that streams keep so that another backend can continue them after an interruption.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokenweir_protocol::atomic::AtomicCount;
use tokenweir_protocol::limits::Party;
use tokenweir_protocol::limits::memory_charge::{Charge, MemoryLimits};
use tokenweir_protocol::mutex::lock;

/// Counts the memory that streams keep for their continuation.
#[derive(Debug, Default)]
pub(crate) struct ContinuationMemory {
    limit: AtomicCount,
    total: Arc<AtomicCount>,
    parties: Mutex<Parties>,
}

/// The bytes that the streams of each party keep.
#[derive(Debug, Default)]
struct Parties {
    used: HashMap<Party, Arc<AtomicCount>>,
    /// Number of parties from which parties without a stream are removed.
    prune_at: usize,
}

const MIN_PRUNED_PARTIES: usize = 256;

impl ContinuationMemory {
    /// Changes the limit, in bytes, for streams that begin from now on.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.set(limit);
    }

    /// Number of bytes that all streams keep now for their continuation.
    pub(crate) fn used_bytes(&self) -> usize {
        self.total.get()
    }

    /// The memory limits for a stream. All streams of one tenant or address together may use half of the
    /// memory.
    pub(crate) fn limits(&self) -> MemoryLimits {
        let total = self.limit.get();
        MemoryLimits {
            one: total,
            party: total / 2,
            total,
        }
    }

    /// A counter for the bytes that one stream of `party` keeps. It starts at 0.
    pub(crate) fn charge(&self, party: Party) -> Charge {
        let mut parties = lock(&self.parties);
        let Parties { used, prune_at } = &mut *parties;
        if used.len() >= *prune_at {
            used.retain(|_, bytes| Arc::strong_count(bytes) > 1);
            *prune_at = (2 * used.len()).max(MIN_PRUNED_PARTIES);
        }
        Charge::new(used.entry(party).or_default().clone(), self.total.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn party(tenant: &str) -> Party {
        Party::new(Some(tenant), Ipv4Addr::LOCALHOST.into())
    }

    #[test]
    fn tenants_and_all_streams_have_limits() {
        let memory = ContinuationMemory::default();
        memory.set_limit(100);
        let take = |charge: &mut Charge, bytes| charge.add(bytes, &memory.limits()).is_ok();
        let (mut first, mut second) = (memory.charge(party("a")), memory.charge(party("a")));
        assert!(take(&mut first, 30) && take(&mut second, 20));
        assert!(!take(&mut second, 1), "half of the limit");
        let mut other = memory.charge(party("b"));
        assert!(take(&mut other, 50));
        assert!(!take(&mut memory.charge(party("c")), 1), "the limit");
        drop((first, other));
        assert_eq!(memory.used_bytes(), 20);
        assert!(take(&mut second, 30));
    }

    #[test]
    fn entries_of_tenants_without_streams_are_pruned() {
        let memory = ContinuationMemory::default();
        memory.set_limit(100);
        let _open = memory.charge(party("open"));
        for number in 0..3 * MIN_PRUNED_PARTIES {
            memory.charge(party(&number.to_string()));
        }
        assert!(memory.parties.lock().unwrap().used.len() <= MIN_PRUNED_PARTIES + 1);
    }
}
