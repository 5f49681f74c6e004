//! Start-time fair queueing (Goyal, Vin and Cheng 1996) of the requests of one class among tenants, with tokens
//! as the unit of service.
//!
//! The next request of a tenant starts at the virtual time at which the previous request of the tenant
//! finished. A tenant that requests more than its share therefore delays only its own requests, and a tenant
//! with few requests is served at once.
//!
//! ```text
//! virtual start of a tenant   max(virtual time, last virtual start of the tenant + granted tokens)
//! virtual time                greatest virtual start of the requests granted so far
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// The queued requests of one class. The keys `K` order the requests of a tenant.
#[derive(Debug)]
pub(super) struct FairQueue<K> {
    /// Maximum virtual start of the granted requests, in tokens.
    virtual_time: u64,
    /// Tenants by id. A tenant without requests remains while its virtual start is in the future.
    tenants: BTreeMap<u64, TenantQueue<K>>,
    /// Tenants with requests, in service order: virtual start, key of the first request, tenant id.
    service_order: BTreeSet<(u64, K, u64)>,
}

#[derive(Debug)]
struct TenantQueue<K> {
    /// Virtual time at which the next request of the tenant starts, in tokens.
    virtual_start: u64,
    /// Keys of the queued requests, in service order.
    keys: BTreeSet<K>,
}

/// Maximum number of tenants without requests whose virtual start is stored.
const MAX_IDLE_TENANTS: usize = 1_024;

impl<K> Default for FairQueue<K> {
    fn default() -> Self {
        Self {
            virtual_time: 0,
            tenants: BTreeMap::new(),
            service_order: BTreeSet::new(),
        }
    }
}

impl<K: Ord + Copy> FairQueue<K> {
    /// Keys of the requests, tenant by tenant in service order.
    pub(super) fn keys_in_service_order(&self) -> impl Iterator<Item = K> + '_ {
        let service_order = self.service_order.iter();
        let tenants = service_order.filter_map(|(_, _, tenant)| self.tenants.get(tenant));
        tenants.flat_map(|tenant| tenant.keys.iter().copied())
    }

    /// Keys of the requests of a tenant that come after `key` in service order.
    pub(super) fn keys_after(&self, tenant: u64, key: K) -> impl Iterator<Item = K> + '_ {
        let tenant = self.tenants.get(&tenant);
        let keys = tenant.map(|tenant| tenant.keys.range((Excluded(key), Unbounded)));
        keys.into_iter().flatten().copied()
    }

    pub(super) fn queued_count(&self, tenant: u64) -> usize {
        self.tenants
            .get(&tenant)
            .map_or(0, |tenant| tenant.keys.len())
    }

    /// Number of requests of the tenant with the most requests, and the key of its last request in service
    /// order. `None`: no request is queued.
    pub(super) fn largest_tenant(&self) -> Option<(usize, K)> {
        let count_and_last =
            |tenant: &TenantQueue<K>| Some((tenant.keys.len(), *tenant.keys.last()?));
        self.tenants.values().filter_map(count_and_last).max()
    }

    /// Adds a request. `key` must differ from the keys of all queued requests.
    pub(super) fn push(&mut self, tenant: u64, key: K) {
        let virtual_time = self.virtual_time;
        self.update_tenant(tenant, |tenant| {
            if tenant.keys.is_empty() {
                tenant.virtual_start = tenant.virtual_start.max(virtual_time);
            }
            tenant.keys.insert(key);
        });
    }

    /// Removes a request. `granted_tokens`: the tokens that are charged to the tenant. `None`: the
    /// request was not granted.
    pub(super) fn remove(&mut self, tenant: u64, key: K, granted_tokens: Option<u64>) {
        let mut virtual_start = 0;
        self.update_tenant(tenant, |tenant| {
            tenant.keys.remove(&key);
            virtual_start = tenant.virtual_start;
            tenant.virtual_start = virtual_start.saturating_add(granted_tokens.unwrap_or(0));
        });
        if granted_tokens.is_some() {
            self.virtual_time = self.virtual_time.max(virtual_start);
        }
        self.prune_tenants(tenant);
    }

    /// Changes a tenant and updates the service order.
    fn update_tenant(&mut self, id: u64, change: impl FnOnce(&mut TenantQueue<K>)) {
        let tenant = self.tenants.entry(id).or_insert(TenantQueue {
            virtual_start: 0,
            keys: BTreeSet::new(),
        });
        if let Some(first) = tenant.keys.first() {
            self.service_order
                .remove(&(tenant.virtual_start, *first, id));
        }
        change(tenant);
        if let Some(first) = tenant.keys.first() {
            self.service_order
                .insert((tenant.virtual_start, *first, id));
        }
    }

    /// Removes tenants without waiting requests, so that memory stays bounded: `tenant` if its virtual start no
    /// longer has an effect, and others if there are too many.
    fn prune_tenants(&mut self, tenant: u64) {
        if self.service_order.is_empty() {
            // If no request waits, the virtual starts have no effect, so they are reset.
            *self = Self::default();
            return;
        }
        let virtual_time = self.virtual_time;
        let is_obsolete =
            |queue: &TenantQueue<K>| queue.keys.is_empty() && queue.virtual_start <= virtual_time;
        if self.tenants.get(&tenant).is_some_and(is_obsolete) {
            self.tenants.remove(&tenant);
        }
        if self.tenants.len() > self.service_order.len() + MAX_IDLE_TENANTS {
            self.tenants.retain(|_, tenant| !tenant.keys.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fair_queue_forgets_tenants_without_queued_requests() {
        let mut queue = FairQueue::default();
        queue.push(0, 0);
        for tenant in 1..10_000 {
            queue.push(tenant, tenant);
            queue.remove(tenant, tenant, Some(1_000_000));
            assert!(queue.tenants.len() <= MAX_IDLE_TENANTS + 2);
        }
        queue.remove(0, 0, None);
        assert!(queue.tenants.is_empty() && queue.service_order.is_empty());
    }

    #[test]
    fn single_requests_are_served_in_arrival_order() {
        let mut queue = FairQueue::default();
        for tenant in [5, 3, 9, 1] {
            queue.push(tenant, 10 - tenant);
        }
        assert_eq!(
            queue.keys_in_service_order().collect::<Vec<_>>(),
            [1, 5, 7, 9]
        );
    }

    #[test]
    fn many_granted_tokens_wait_behind_later_tenants() {
        let mut queue = FairQueue::default();
        (0..4).for_each(|request_id| queue.push(1, request_id));
        queue.remove(1, 0, Some(500));
        queue.push(2, 4);
        assert_eq!(queue.keys_in_service_order().next(), Some(4));
        queue.remove(2, 4, Some(100));
        // The virtual start of tenant 2 is still stored, although the tenant has had no request in between.
        queue.push(2, 5);
        assert_eq!(queue.keys_in_service_order().next(), Some(5));
        queue.remove(2, 5, Some(1_000));
        queue.push(2, 6);
        assert_eq!(queue.keys_in_service_order().next(), Some(1));
    }
}
