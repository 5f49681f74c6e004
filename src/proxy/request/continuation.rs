//! Decides whether the stream of a request can be continued, and bounds the memory for it.

use super::body_memory::BodyOwner;
use crate::proxy::retry::RetryController;
use http::request;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokenweir_core::continuation::{
    ContinuationMode, ContinuationPlan, ContinuationRefusal, MemoryBudget, StreamSplicer,
};
use tokenweir_core::headers;
use tokenweir_core::observe::Exchange;
use tokenweir_core::openai::Splice;
use tokenweir_core::openai::engine_control::FieldEdit;
use tokenweir_core::openai::request_fields::RequestFields;

/// Counts the memory that streams keep for their continuation.
#[derive(Debug)]
pub struct ContinuationMemory {
    limit: AtomicUsize,
    /// The bytes of each tenant, or of each address of clients without one.
    used: Mutex<HashMap<BodyOwner, usize>>,
}

/// The memory of one stream. Dropping it returns the bytes.
#[derive(Debug)]
pub(crate) struct ContinuationPermit {
    memory: Arc<ContinuationMemory>,
    owner: BodyOwner,
    bytes: usize,
}

/// The field of vLLM that requests the token ids of prompt and output.
const TOKEN_IDS_FIELD: &str = "return_token_ids";

/// Whether the stream of a request can be continued in `mode`. `None`: that is off, or the response is
/// no stream. Adds the edit that the continuation needs.
pub(crate) fn plan(
    exchange: &mut Exchange,
    mode: Option<ContinuationMode>,
    head: &request::Parts,
    fields: &RequestFields,
    body: &[u8],
    edits: &mut Vec<FieldEdit>,
) -> Option<Result<ContinuationPlan, ContinuationRefusal>> {
    let rules = exchange.policy().rules;
    let mode = mode.unwrap_or(rules.continuation);
    if mode == ContinuationMode::Off || !fields.stream {
        return None;
    }
    let api = exchange.record().api;
    let plan = ContinuationPlan::read(api, body, mode, rules.continuation_greedy_only);
    let plan = plan.and_then(|plan| {
        if headers::has_body_digest(&head.headers) {
            return Err(ContinuationRefusal::SignedBody);
        }
        if fields.has_effects(body) {
            return Err(ContinuationRefusal::Stored);
        }
        if plan.adds_token_ids() {
            let splice = Splice::insert(body, &format!(r#""{TOKEN_IDS_FIELD}":true"#));
            let splice = splice.ok_or(ContinuationRefusal::Unreadable)?;
            edits.push(FieldEdit { field: TOKEN_IDS_FIELD, splice });
        }
        Ok(plan)
    });
    Some(plan)
}

/// Lets the exchange keep what a continuation needs. `bytes`: length of the body.
pub(crate) fn begin(
    exchange: &mut Exchange,
    plan: Result<ContinuationPlan, ContinuationRefusal>,
    retry: &RetryController,
    mut permit: ContinuationPermit,
    bytes: usize,
) {
    if plan.is_ok() {
        retry.deposit_stream();
    }
    let has_memory = plan.is_err() || permit.take(bytes);
    let mut splicer = StreamSplicer::new(plan, Box::new(permit));
    if !has_memory {
        splicer.refuse(ContinuationRefusal::Memory);
    }
    exchange.splice_streams(splicer);
}

impl ContinuationMemory {
    /// A counter with a limit in bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit), used: Mutex::default() }
    }

    /// Changes the limit. Streams keep what they have.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Number of bytes that all streams keep now.
    pub fn used_bytes(&self) -> usize {
        self.lock().values().sum()
    }

    /// A permit for a stream of `owner`, which has no bytes yet.
    pub(crate) fn permit(self: &Arc<Self>, owner: BodyOwner) -> ContinuationPermit {
        ContinuationPermit { memory: self.clone(), owner, bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BodyOwner, usize>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryBudget for ContinuationPermit {
    /// Fails at the limit, and at half of it for one tenant or address.
    fn take(&mut self, bytes: usize) -> bool {
        let limit = self.memory.limit.load(Ordering::Relaxed);
        let mut used = self.memory.lock();
        let total: usize = used.values().sum();
        let of_owner = used.get(&self.owner).copied().unwrap_or(0);
        let is_free =
            total.saturating_add(bytes) <= limit && of_owner.saturating_add(bytes) <= limit / 2;
        if is_free {
            used.insert(self.owner, of_owner + bytes);
            self.bytes += bytes;
        }
        is_free
    }
}

impl Drop for ContinuationPermit {
    fn drop(&mut self) {
        let mut used = self.memory.lock();
        let rest = used.get(&self.owner).copied().unwrap_or(0).saturating_sub(self.bytes);
        if rest == 0 {
            used.remove(&self.owner);
        } else {
            used.insert(self.owner, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn the_memory_of_continuations_is_limited_for_a_tenant_and_for_all() {
        let memory = Arc::new(ContinuationMemory::new(100));
        let owner = |tenant| BodyOwner::new(Some(tenant), IpAddr::from([127, 0, 0, 1]));
        let (mut first, mut second) = (memory.permit(owner("a")), memory.permit(owner("a")));
        assert!(first.take(30) && second.take(20));
        assert!(!second.take(1), "half of the limit");
        let mut other = memory.permit(owner("b"));
        assert!(other.take(50));
        assert!(!memory.permit(owner("c")).take(1), "the limit");
        drop((first, other));
        assert_eq!(memory.used_bytes(), 20);
        assert!(second.take(30));
    }
}
