//! Limits the memory of all request bodies together.
//!
//! The gateway holds each request body until the response begins, because a retry may need the
//! body. Without a limit, slow uploads on many connections would take all memory of the process.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenweir_protocol::limits::client_network;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::error::GatewayError;

/// Counts and limits the memory of all request bodies together.
#[derive(Debug)]
pub struct BodyMemory {
    used_bytes: AtomicUsize,
    limit_bytes: AtomicUsize,
    /// The bodies of each owner that are larger than [`LARGE_BODY_BYTES`].
    large_bodies: Mutex<HashMap<BodyOwner, LargeBodies>>,
}

/// The owner of request bodies: a hash of the tenant, or the network of a client without a tenant. The
/// large bodies of one owner may use only a part of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BodyOwner(u64);

/// Number and total length of the large bodies of one owner.
#[derive(Debug, Clone, Copy, Default)]
struct LargeBodies {
    count: usize,
    bytes: usize,
}

/// The permit for the body memory of one request. Dropping the permit releases its bytes.
#[derive(Debug)]
pub(crate) struct BodyMemoryPermit<'a> {
    memory: &'a BodyMemory,
    /// The owner of the body.
    pub(crate) owner: BodyOwner,
    /// Number of bytes that the request has in the shared body memory now.
    bytes: usize,
}

/// Size in bytes above which a body counts towards the share of its owner. Smaller bodies do not count:
/// they are so many that the lock would cost too much, and too small to fill the memory.
const LARGE_BODY_BYTES: usize = 64 << 10;

impl BodyOwner {
    /// The owner of the body of a request. `tenant`: `None` for a client without an API key.
    pub(crate) fn new(tenant: Option<&str>, client: IpAddr) -> Self {
        let mut hasher = DefaultHasher::new();
        match (tenant, client_network(client)) {
            (Some(tenant), _) => tenant.hash(&mut hasher),
            (None, IpAddr::V4(address)) => return Self(address.to_bits().into()),
            (None, IpAddr::V6(network)) => network.hash(&mut hasher),
        }
        Self(hasher.finish())
    }
}

impl Default for BodyMemory {
    /// The default: a counter without a limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl BodyMemory {
    /// A counter with a limit of `limit` bytes for all request bodies together.
    pub fn new(limit: usize) -> Self {
        Self {
            used_bytes: AtomicUsize::new(0),
            limit_bytes: AtomicUsize::new(limit),
            large_bodies: Mutex::default(),
        }
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

    /// A permit for a new request of `owner`, which uses no bytes yet.
    pub(crate) const fn empty_permit(&self, owner: BodyOwner) -> BodyMemoryPermit<'_> {
        BodyMemoryPermit { memory: self, owner, bytes: 0 }
    }

    /// Maximum number of bytes of all large bodies of one tenant or address: three quarters of the
    /// limit, so that others can send requests. A single body may be larger.
    fn share_bytes(&self) -> usize {
        self.limit_bytes() / 4 * 3
    }
}

impl BodyMemoryPermit<'_> {
    /// Counts `bytes` more bytes for this request. Fails if the bytes of all requests then exceed
    /// the limit, or if the large bodies of the owner exceed the share of an owner.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), GatewayError> {
        if bytes == 0 {
            return Ok(());
        }
        let before = self.memory.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        // The bytes are counted even on failure. Dropping the permit releases them.
        let of_party = self.set_bytes(self.bytes + bytes);
        let is_over = before.saturating_add(bytes) > self.memory.limit_bytes()
            || of_party > self.memory.share_bytes();
        if is_over { Err(GatewayError::BodyMemory) } else { Ok(()) }
    }

    /// Changes the bytes of this request. Returns the bytes of all large bodies of the owner, or 0
    /// if this body is not large, did not change, or is the only large one.
    fn set_bytes(&mut self, bytes: usize) -> usize {
        let large = |bytes: usize| if bytes > LARGE_BODY_BYTES { bytes } else { 0 };
        let (before, after) = (large(self.bytes), large(bytes));
        self.bytes = bytes;
        if before == after {
            return 0;
        }
        let mut parties = lock(&self.memory.large_bodies);
        let party = parties.entry(self.owner).or_default();
        party.bytes = (party.bytes + after).saturating_sub(before);
        party.count =
            (party.count + usize::from(before == 0)).saturating_sub(usize::from(after == 0));
        let LargeBodies { count, bytes } = *party;
        if count == 0 {
            parties.remove(&self.owner);
        }
        if after > 0 && count > 1 { bytes } else { 0 }
    }

    /// Lowers the number of bytes of this permit to `bytes`, if it is higher.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let released = self.bytes.saturating_sub(bytes);
        self.memory.used_bytes.fetch_sub(released, Ordering::Relaxed);
        self.set_bytes(self.bytes - released);
    }

    /// Raises the number of bytes of this permit to `bytes`, if it is lower. Fails as [`Self::add`] does.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), GatewayError> {
        self.add(bytes.saturating_sub(self.bytes))
    }
}

impl Drop for BodyMemoryPermit<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.used_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
            self.set_bytes(0);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    pub(in crate::proxy::request) fn owner(tenant: &str) -> BodyOwner {
        BodyOwner::new(Some(tenant), Ipv4Addr::LOCALHOST.into())
    }

    #[test]
    fn clients_in_the_same_ipv6_network_are_one_owner_of_request_bodies() {
        let owner = |address: &str| BodyOwner::new(None, address.parse().unwrap());
        assert_eq!(owner("2001:db8::1"), owner("2001:db8::2"));
        assert_ne!(owner("2001:db8::1"), owner("2001:db8:0:1::1"));
        assert_eq!(owner("::ffff:10.0.0.1"), owner("10.0.0.1"));
        assert_ne!(owner("10.0.0.1"), owner("10.0.0.2"));
    }

    #[test]
    fn the_large_request_bodies_of_one_tenant_leave_a_quarter_of_the_body_memory_to_others() {
        const MIB: usize = 1 << 20;
        let memory = BodyMemory::new(8 * MIB);
        let mut permits: Vec<_> = (0..2).map(|_| memory.empty_permit(owner("a"))).collect();
        assert_eq!(permits[0].add(4 * MIB), Ok(()));
        assert_eq!(permits[1].add(2 * MIB), Ok(()));
        assert_eq!(permits[1].add(1), Err(GatewayError::BodyMemory));
        permits[1].shrink_to(2 * MIB);
        assert_eq!(memory.empty_permit(owner("a")).add(LARGE_BODY_BYTES), Ok(()), "it is small");
        assert_eq!(memory.empty_permit(owner("b")).add(MIB), Ok(()));
        permits[0].shrink_to(MIB);
        assert_eq!(memory.empty_permit(owner("a")).add(2 * MIB), Ok(()));
        drop(permits);
        assert_eq!(memory.empty_permit(owner("a")).add(7 * MIB), Ok(()), "the only one");
        assert_eq!((memory.used_bytes(), lock(&memory.large_bodies).len()), (0, 0));
    }

    #[test]
    fn the_memory_of_request_bodies_is_limited_and_released() {
        let memory = BodyMemory::new(10);
        let (mut first, mut second) =
            (memory.empty_permit(owner("a")), memory.empty_permit(owner("b")));
        assert_eq!((first.add(6), first.grow_to(6), second.add(4)), (Ok(()), Ok(()), Ok(())));
        first.shrink_to(8);
        first.shrink_to(5);
        assert_eq!((memory.used_bytes(), first.grow_to(6)), (9, Ok(())));
        assert_eq!(first.grow_to(7), Err(GatewayError::BodyMemory));
        drop(first);
        assert_eq!(memory.used_bytes(), 4);
        assert_eq!(second.grow_to(10), Ok(()));
        memory.set_limit(10);
        assert_eq!(memory.empty_permit(owner("c")).add(1), Err(GatewayError::BodyMemory));
        drop(second);
        assert_eq!(memory.used_bytes(), 0, "rejected bytes are released too");
    }
}
