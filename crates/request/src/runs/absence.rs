//! Counts the runs that continue without a client. They occupy capacity that connected clients could use, so
//! their number is limited.

use std::sync::Arc;
use tokenweir_protocol::atomic::AtomicCount;
use tokenweir_protocol::limits::memory_charge::{Charge, ExceededLimit, MemoryLimits};

/// The permit of a run to continue without a client. Dropping the permit releases it.
#[derive(Debug)]
pub(super) struct Absence {
    limits: MemoryLimits,
    /// Counts the run in two sums: the runs of its party, and all runs.
    of_party: Charge,
    /// Counts the run in the sum for its client's network.
    of_network: Charge,
    is_taken: bool,
}

/// The runs without a client of one party are limited to the gateway's maximum number of open requests divided
/// by this number, but at least one is allowed.
const PARTY_DIVISOR: usize = 4;
/// All runs without a client together are limited to the gateway's maximum number of open requests divided by
/// this number.
const TOTAL_DIVISOR: usize = 2;

impl Absence {
    /// A permit that is not taken. `places`: maximum number of open requests of the gateway.
    pub(super) fn new(places: usize, of_party: Charge, of_network: Arc<AtomicCount>) -> Self {
        let total = places / TOTAL_DIVISOR;
        let party = (places / PARTY_DIVISOR).max(1).min(total);
        let limits = MemoryLimits {
            one: 1,
            party,
            total,
        };
        let of_network = Charge::new(of_network, Arc::default());
        Self {
            limits,
            of_party,
            of_network,
            is_taken: false,
        }
    }

    /// Takes the permit, if the limits allow one more run without a client.
    pub(super) fn take(&mut self) -> Result<(), ExceededLimit> {
        if !self.is_taken {
            self.of_party.add(1, &self.limits)?;
            self.of_network.add_passing(1);
            self.is_taken = true;
        }
        Ok(())
    }

    /// Releases the permit.
    pub(super) fn free(&mut self) {
        if std::mem::take(&mut self.is_taken) {
            self.of_party.release(1);
            self.of_network.release(1);
        }
    }
}
