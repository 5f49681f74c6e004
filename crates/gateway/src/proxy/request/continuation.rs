//! Decides whether another backend can continue the stream of a request after an interruption, and limits
//! the memory that streams keep for this.

use super::body_memory::BodyOwner;
use http::request;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokenweir_protocol::headers;
use tokenweir_protocol::limits::memory_charge::{Charge, MemoryLimits};
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::Splice;
use tokenweir_protocol::openai::engine_control::FieldEdit;
use tokenweir_protocol::openai::request_fields::RequestFields;
use tokenweir_request::continuation::{
    ContinuationMode, ContinuationPlan, ContinuationRefusal, StreamSplicer,
};
use tokenweir_request::observe::Exchange;

/// Counts the memory that streams keep for their continuation.
#[derive(Debug)]
pub struct ContinuationMemory {
    limit: AtomicUsize,
    total: Arc<AtomicUsize>,
    owners: Mutex<Owners>,
}

/// The bytes that the streams of each owner keep. An owner is a tenant, or the address of a client
/// without a tenant.
#[derive(Debug, Default)]
struct Owners {
    used: HashMap<BodyOwner, Arc<AtomicUsize>>,
    /// Number of owners at which the owners without a stream are removed.
    prune_at: usize,
}

/// Minimum of `Owners::prune_at`.
const MIN_PRUNED_OWNERS: usize = 256;

/// The request field of vLLM that requests the token ids of prompt and output.
const TOKEN_IDS_FIELD: &str = "return_token_ids";

/// Decides whether the stream of a request can be continued. `mode`: the mode of the tenant or the
/// model. `None`: the global mode. Adds an edit to `edits` if the body must request token ids for the
/// continuation. Returns `None` if continuation is off or the response is no stream.
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

/// Makes the exchange keep the output that a continuation needs. `bytes`: length of the request body.
pub(crate) fn begin(
    exchange: &mut Exchange,
    plan: Result<ContinuationPlan, ContinuationRefusal>,
    (memory, owner): (&ContinuationMemory, BodyOwner),
    bytes: usize,
) {
    let (mut charge, limits) = (memory.charge(owner), memory.limits());
    let has_memory = plan.is_err() || charge.add(bytes, &limits).is_ok();
    let mut splicer = StreamSplicer::new(plan, charge, limits);
    if !has_memory {
        splicer.refuse(ContinuationRefusal::Memory);
    }
    exchange.splice_streams(splicer);
}

impl ContinuationMemory {
    /// A counter with a limit, in bytes, for all streams together.
    pub fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit), total: Arc::default(), owners: Mutex::default() }
    }

    /// Changes the limit, in bytes, for streams that begin from now on.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Number of bytes that all streams keep now for their continuation.
    pub fn used_bytes(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// The memory limits for a stream. All streams of one tenant or address may use half of the memory.
    fn limits(&self) -> MemoryLimits {
        let total = self.limit.load(Ordering::Relaxed);
        MemoryLimits { one: total, party: total / 2, total }
    }

    /// A counter of the bytes that one stream of `owner` keeps, which begins at 0.
    fn charge(&self, owner: BodyOwner) -> Charge {
        let mut owners = lock(&self.owners);
        let Owners { used, prune_at } = &mut *owners;
        if used.len() >= *prune_at {
            used.retain(|_, bytes| Arc::strong_count(bytes) > 1);
            *prune_at = (2 * used.len()).max(MIN_PRUNED_OWNERS);
        }
        Charge::new(used.entry(owner).or_default().clone(), self.total.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::body_memory::tests::owner;
    use super::*;

    #[test]
    fn the_memory_that_streams_keep_for_continuation_is_limited_per_tenant_and_in_total() {
        let memory = ContinuationMemory::new(100);
        let take = |charge: &mut Charge, bytes| charge.add(bytes, &memory.limits()).is_ok();
        let (mut first, mut second) = (memory.charge(owner("a")), memory.charge(owner("a")));
        assert!(take(&mut first, 30) && take(&mut second, 20));
        assert!(!take(&mut second, 1), "half of the limit");
        let mut other = memory.charge(owner("b"));
        assert!(take(&mut other, 50));
        assert!(!take(&mut memory.charge(owner("c")), 1), "the limit");
        drop((first, other));
        assert_eq!(memory.used_bytes(), 20);
        assert!(take(&mut second, 30));
    }

    #[test]
    fn a_tenant_without_streams_is_removed_from_the_counts_of_continuation_memory() {
        let memory = ContinuationMemory::new(100);
        let _open = memory.charge(owner("open"));
        for number in 0..3 * MIN_PRUNED_OWNERS {
            memory.charge(owner(&number.to_string()));
        }
        assert!(memory.owners.lock().unwrap().used.len() <= MIN_PRUNED_OWNERS + 1);
    }
}
