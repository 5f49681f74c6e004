//! The tickets of one class, shared fairly among tenants: start-time fair queueing (Goyal, Vin and
//! Cheng, 1996) with tokens as the unit. A tenant's next ticket starts where its last one ended, so
//! a tenant that asks for more than its share waits behind itself, and one that comes seldom is
//! served at once.
//!
//! ```text
//! start of a tenant   max(virtual time, its last start + tokens granted)
//! virtual time        the start of the ticket that was granted last
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// The tickets of a class.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    virtual_time: u64,
    tenants: BTreeMap<u64, Tenant>,
    /// Tenants with tickets, the next one first: start, oldest ticket, tenant.
    order: BTreeSet<(u64, u64, u64)>,
}

#[derive(Debug, Default)]
struct Tenant {
    start: u64,
    /// The oldest first.
    tickets: BTreeSet<u64>,
}

/// Most tenants without a ticket whose share is remembered.
const MAX_IDLE: usize = 1_024;

impl FairQueue {
    /// The tickets, in the order in which they are to be served.
    pub(super) fn tickets(&self) -> impl Iterator<Item = u64> + '_ {
        let tenants = self.order.iter().filter_map(|(_, _, tenant)| self.tenants.get(tenant));
        tenants.flat_map(|tenant| tenant.tickets.iter().copied())
    }

    /// How many tickets a tenant has.
    pub(super) fn places_of(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.tickets.len())
    }

    /// The tenant with the most tickets: their number, and its newest.
    pub(super) fn biggest(&self) -> Option<(usize, u64)> {
        let newest = |tenant: &Tenant| Some((tenant.tickets.len(), *tenant.tickets.last()?));
        self.tenants.values().filter_map(newest).max()
    }

    /// Adds a ticket, which is newer than all others.
    pub(super) fn push(&mut self, tenant: u64, ticket: u64) {
        let now = self.virtual_time;
        self.change(tenant, |tenant| {
            if tenant.tickets.is_empty() {
                tenant.start = tenant.start.max(now);
            }
            tenant.tickets.insert(ticket);
        });
    }

    /// Takes a ticket out. `granted`: the tokens that its tenant gets for it; `None`: it has left.
    pub(super) fn remove(&mut self, tenant: u64, ticket: u64, granted: Option<u64>) {
        let mut start = 0;
        self.change(tenant, |tenant| {
            tenant.tickets.remove(&ticket);
            start = tenant.start;
            tenant.start = start.saturating_add(granted.unwrap_or(0));
        });
        if granted.is_some() {
            self.virtual_time = self.virtual_time.max(start);
        }
        self.forget(tenant);
    }

    /// Changes a tenant, and its place in the order with it.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut Tenant)) {
        let tenant = self.tenants.entry(id).or_default();
        if let Some(oldest) = tenant.tickets.first() {
            self.order.remove(&(tenant.start, *oldest, id));
        }
        change(tenant);
        if let Some(oldest) = tenant.tickets.first() {
            self.order.insert((tenant.start, *oldest, id));
        }
    }

    /// Drops what no longer matters, so that tenants who come once cost no memory.
    fn forget(&mut self, tenant: u64) {
        if self.order.is_empty() {
            // Nobody waits, so nobody has been favoured.
            *self = Self::default();
            return;
        }
        let now = self.virtual_time;
        if self.tenants.get(&tenant).is_some_and(|t| t.tickets.is_empty() && t.start <= now) {
            self.tenants.remove(&tenant);
        }
        if self.tenants.len() > self.order.len() + MAX_IDLE {
            self.tenants.retain(|_, tenant| !tenant.tickets.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_that_come_once_and_go_are_forgotten() {
        let mut queue = FairQueue::default();
        queue.push(0, 0);
        for tenant in 1..10_000 {
            queue.push(tenant, tenant);
            queue.remove(tenant, tenant, Some(1_000_000));
            assert!(queue.tenants.len() <= MAX_IDLE + 2);
        }
        queue.remove(0, 0, None);
        assert!(queue.tenants.is_empty() && queue.order.is_empty());
    }

    #[test]
    fn tenants_with_one_ticket_each_are_served_as_they_came() {
        let mut queue = FairQueue::default();
        for tenant in [5, 3, 9, 1] {
            queue.push(tenant, 10 - tenant);
        }
        assert_eq!(queue.tickets().collect::<Vec<_>>(), [1, 5, 7, 9]);
    }

    #[test]
    fn a_tenant_that_has_been_granted_much_waits_behind_one_that_comes_later() {
        let mut queue = FairQueue::default();
        (0..4).for_each(|ticket| queue.push(1, ticket));
        queue.remove(1, 0, Some(500));
        queue.push(2, 4);
        assert_eq!(queue.tickets().next(), Some(4));
        queue.remove(2, 4, Some(100));
        // Its share is remembered although it had no ticket in between.
        queue.push(2, 5);
        assert_eq!(queue.tickets().next(), Some(5));
        queue.remove(2, 5, Some(1_000));
        queue.push(2, 6);
        assert_eq!(queue.tickets().next(), Some(1));
    }
}
