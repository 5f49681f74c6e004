//! Limits the memory of all request bodies together.
//!
//! The gateway holds each request body until the response begins, because a retry may need the
//! body. Without a limit, slow uploads on many connections would take all memory of the process.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokenweir_protocol::atomic::AtomicCount;
use tokenweir_protocol::limits::Party;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::error::GatewayError;

/// Counts and limits the memory of all request bodies together.
#[derive(Debug)]
pub struct BodyMemory {
    used_bytes: AtomicCount,
    limit_bytes: AtomicCount,
    /// The bodies above [`LARGE_BODY_BYTES`], by party.
    large_bodies: Mutex<HashMap<Party, LargeBodies>>,
}

/// Number and total length of the large bodies of one party.
#[derive(Debug, Clone, Copy, Default)]
struct LargeBodies {
    count: usize,
    bytes: usize,
}

/// The permit for the body memory of one request. Dropping the permit releases its bytes.
#[derive(Debug)]
pub struct BodyMemoryPermit {
    memory: Arc<BodyMemory>,
    /// The party to which the memory is charged.
    pub party: Party,
    /// Number of bytes that the request has in the shared body memory now.
    bytes: usize,
}

/// A request body that the gateway holds, with the permit for its memory. The two values stay together, so that
/// no code can hold the bytes without counting them.
#[derive(Debug)]
pub struct HeldBody {
    bytes: Bytes,
    permit: BodyMemoryPermit,
}

/// The body of a request that is received before the gateway handles the request. `None`: the body was taken.
pub struct ReceivedBody(Option<HeldBody>);

/// Size in bytes above which a body counts towards the share of its party. Smaller bodies do not count: they
/// are too many for the cost of the lock, and too small to fill the memory.
const LARGE_BODY_BYTES: usize = 64 << 10;

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
            used_bytes: AtomicCount::default(),
            limit_bytes: AtomicCount::new(limit),
            large_bodies: Mutex::default(),
        }
    }

    /// Changes the limit, in bytes. Requests that already hold body memory keep it, even above the
    /// new limit.
    pub fn set_limit(&self, limit: usize) {
        self.limit_bytes.set(limit);
    }

    /// Number of bytes that all request bodies use now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.get()
    }

    /// The limit on the memory of all request bodies, in bytes. `usize::MAX`: no limit.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes.get()
    }

    /// A permit for a new request of `party`, which uses no bytes yet.
    pub fn empty_permit(self: &Arc<Self>, party: Party) -> BodyMemoryPermit {
        BodyMemoryPermit {
            memory: self.clone(),
            party,
            bytes: 0,
        }
    }

    /// An empty body for a request without a body.
    pub(crate) fn no_body(self: &Arc<Self>, party: Party) -> HeldBody {
        HeldBody::new(Bytes::new(), self.empty_permit(party))
    }

    /// Maximum number of bytes of all large bodies of one tenant or address. Three quarters of the limit leave
    /// memory for others. A single body may be larger.
    fn share_bytes(&self) -> usize {
        self.limit_bytes() / 4 * 3
    }
}

impl BodyMemoryPermit {
    /// Counts `bytes` more bytes for this request. Fails if the bytes of all requests then exceed
    /// the limit, or if the large bodies of the party exceed the share of a party.
    pub fn add(&mut self, bytes: usize) -> Result<(), GatewayError> {
        if bytes == 0 {
            return Ok(());
        }
        let before = self.memory.used_bytes.add(bytes);
        // On failure the bytes remain counted until the permit is dropped.
        let of_party = self.set_bytes(self.bytes + bytes);
        let is_over = before.saturating_add(bytes) > self.memory.limit_bytes()
            || of_party > self.memory.share_bytes();
        if is_over {
            Err(GatewayError::BodyMemory)
        } else {
            Ok(())
        }
    }

    /// Changes the bytes of this request. Returns the bytes of all large bodies of the party. Returns 0 if this
    /// body is not large, did not change, or is the only large one.
    fn set_bytes(&mut self, bytes: usize) -> usize {
        let large = |bytes: usize| if bytes > LARGE_BODY_BYTES { bytes } else { 0 };
        let before = large(self.bytes);
        let after = large(bytes);
        self.bytes = bytes;
        if before == after {
            return 0;
        }
        let mut parties = lock(&self.memory.large_bodies);
        let party = parties.entry(self.party).or_default();
        party.bytes = (party.bytes + after).saturating_sub(before);
        party.count =
            (party.count + usize::from(before == 0)).saturating_sub(usize::from(after == 0));
        let LargeBodies { count, bytes } = *party;
        if count == 0 {
            parties.remove(&self.party);
        }
        if after > 0 && count > 1 { bytes } else { 0 }
    }

    /// Lowers the number of bytes of this permit to `bytes`, if it is higher.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let released = self.bytes.saturating_sub(bytes);
        self.memory.used_bytes.sub(released);
        self.set_bytes(self.bytes - released);
    }

    /// Raises the number of bytes of this permit to `bytes`, if it is lower. Fails as [`Self::add`] does.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), GatewayError> {
        self.add(bytes.saturating_sub(self.bytes))
    }
}

impl Drop for BodyMemoryPermit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.used_bytes.sub(self.bytes);
            self.set_bytes(0);
        }
    }
}

impl HeldBody {
    pub(super) const fn new(bytes: Bytes, permit: BodyMemoryPermit) -> Self {
        Self { bytes, permit }
    }

    /// The party to which the memory is charged.
    pub const fn party(&self) -> Party {
        self.permit.party
    }

    /// Counts the memory of another copy of the body. Fails if a memory limit is exceeded.
    pub(super) fn add_copy(&mut self) -> Result<(), GatewayError> {
        self.permit.add(self.bytes.len())
    }

    /// The bytes for a connection. The caller holds this body while the connection sends them.
    pub(super) fn to_send(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The bytes, for a holder that counts them as other memory.
    pub(super) fn into_uncounted(self) -> Bytes {
        self.bytes
    }
}

impl Deref for HeldBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ReceivedBody {
    /// Wraps a body that was read before the request was handled.
    pub const fn new(body: HeldBody) -> Self {
        Self(Some(body))
    }

    pub(super) fn take(&mut self) -> Option<HeldBody> {
        self.0.take()
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(
            self.take()
                .map(|body| Ok(Frame::data(body.into_uncounted()))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |body| body.len() as u64))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    pub(in crate::proxy::request) fn party(tenant: &str) -> Party {
        Party::new(Some(tenant), Ipv4Addr::LOCALHOST.into())
    }

    #[test]
    fn one_tenant_leaves_a_quarter_to_others() {
        const MIB: usize = 1 << 20;
        let memory = Arc::new(BodyMemory::new(8 * MIB));
        let mut permits: Vec<_> = (0..2).map(|_| memory.empty_permit(party("a"))).collect();
        assert_eq!(permits[0].add(4 * MIB), Ok(()));
        assert_eq!(permits[1].add(2 * MIB), Ok(()));
        assert_eq!(permits[1].add(1), Err(GatewayError::BodyMemory));
        permits[1].shrink_to(2 * MIB);
        assert_eq!(
            memory.empty_permit(party("a")).add(LARGE_BODY_BYTES),
            Ok(()),
            "it is small"
        );
        assert_eq!(memory.empty_permit(party("b")).add(MIB), Ok(()));
        permits[0].shrink_to(MIB);
        assert_eq!(memory.empty_permit(party("a")).add(2 * MIB), Ok(()));
        drop(permits);
        assert_eq!(
            memory.empty_permit(party("a")).add(7 * MIB),
            Ok(()),
            "the only one"
        );
        assert_eq!(
            (memory.used_bytes(), lock(&memory.large_bodies).len()),
            (0, 0)
        );
    }

    #[test]
    fn memory_is_limited_and_released() {
        let memory = Arc::new(BodyMemory::new(10));
        let (mut first, mut second) = (
            memory.empty_permit(party("a")),
            memory.empty_permit(party("b")),
        );
        assert_eq!(
            (first.add(6), first.grow_to(6), second.add(4)),
            (Ok(()), Ok(()), Ok(()))
        );
        first.shrink_to(8);
        first.shrink_to(5);
        assert_eq!((memory.used_bytes(), first.grow_to(6)), (9, Ok(())));
        assert_eq!(first.grow_to(7), Err(GatewayError::BodyMemory));
        drop(first);
        assert_eq!(memory.used_bytes(), 4);
        assert_eq!(second.grow_to(10), Ok(()));
        memory.set_limit(10);
        assert_eq!(
            memory.empty_permit(party("c")).add(1),
            Err(GatewayError::BodyMemory)
        );
        drop(second);
        assert_eq!(memory.used_bytes(), 0, "rejected bytes are released too");
    }
}
