//! Limits and usage of the subjects of tokens. They outlive the tokens, so that a new token does not reset the
//! usage of its subject.

use super::grant::TokenGrant;
use crate::access::usage::{QuotaRegistry, SubjectUsage, UsageLimiter, UsageLimits};
use crate::record::ClientIdentity;
use lru::LruCache;
use std::sync::{Arc, Mutex};
use tokenweir_protocol::mutex::lock;

/// The limiters of subjects that have limits, by tenant and key.
#[derive(Debug)]
pub(crate) struct SubjectLimiters(Mutex<LruCache<SubjectId, Arc<UsageLimiter>>>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct SubjectId {
    tenant: Box<str>,
    key: Box<str>,
}

/// Maximum number of subjects. Beyond it, the least recently used subject loses its usage.
const MAX_SUBJECTS: usize = 1 << 16;

impl SubjectLimiters {
    /// The limiter of a subject. From now on it has the limits of the subject's newest token. `None`: no
    /// limits.
    pub(crate) fn limiter(
        &self,
        caller: &ClientIdentity,
        grant: &TokenGrant,
        registry: &Arc<QuotaRegistry>,
    ) -> Option<Arc<UsageLimiter>> {
        if grant.limits == UsageLimits::default() {
            return None;
        }
        let name = format!("{}/token/{}", caller.tenant, grant.subject);
        let id = SubjectId::of(caller);
        let mut limiters = lock(&self.0);
        let limiter = UsageLimiter::new(name, grant.limits, registry, limiters.get(&id));
        limiters.put(id, limiter.clone());
        if limiters.len() > MAX_SUBJECTS {
            limiters.pop_lru();
        }
        Some(limiter)
    }

    pub(crate) fn with_quotas(&self) -> Vec<Arc<SubjectUsage>> {
        let limiters = lock(&self.0);
        let subjects = limiters
            .iter()
            .filter_map(|(_, it)| it.subject_with_quotas());
        subjects.cloned().collect()
    }

    /// The limiter of a subject. `None`: no limits.
    pub(crate) fn find(&self, caller: &ClientIdentity) -> Option<Arc<UsageLimiter>> {
        lock(&self.0).get(&SubjectId::of(caller)).cloned()
    }
}

impl SubjectId {
    fn of(caller: &ClientIdentity) -> Self {
        Self {
            tenant: (*caller.tenant).into(),
            key: (*caller.key).into(),
        }
    }
}

impl Default for SubjectLimiters {
    fn default() -> Self {
        Self(Mutex::new(LruCache::unbounded()))
    }
}
