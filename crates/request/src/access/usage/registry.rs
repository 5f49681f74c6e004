//! The state that requests share with the option that shares quotas between gateways: how much a gateway may
//! use without a grant, and which subjects are in use.

use super::limits::QuotaScope;
use super::quota::SharingRule;
use super::saved::AwaitedQuotas;
use super::subject::SubjectUsage;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokenweir_protocol::mutex::lock;

/// The quotas of all tenants, keys and models, and the rule for sharing them.
#[derive(Debug)]
pub struct QuotaRegistry {
    /// Whether other gateways use the same quotas.
    pub scope: QuotaScope,
    /// The divisor for use without a grant. 0: a gateway may use nothing.
    ungranted_divisor: AtomicU64,
    /// The divisor for use beyond the grant. 0: a gateway uses only its grant.
    free_divisor: AtomicU64,
    active: Mutex<Vec<Arc<SubjectUsage>>>,
    /// Usage from before a restart, of subjects that are not known yet.
    pub awaited: AwaitedQuotas,
}

impl Default for QuotaRegistry {
    fn default() -> Self {
        Self::new(QuotaScope::Gateway)
    }
}

impl QuotaRegistry {
    /// A registry without subjects.
    pub fn new(scope: QuotaScope) -> Self {
        let ungranted_divisor = match scope {
            QuotaScope::Gateway => 1,
            QuotaScope::Shared => 0,
        };
        Self {
            scope,
            ungranted_divisor: ungranted_divisor.into(),
            free_divisor: AtomicU64::new(0),
            active: Mutex::default(),
            awaited: AwaitedQuotas::default(),
        }
    }

    /// How much a gateway may use without a grant.
    pub fn rule(&self) -> SharingRule {
        let read = |divisor: &AtomicU64| Some(divisor.load(Ordering::Relaxed)).filter(|by| *by > 0);
        SharingRule {
            ungranted_divisor: read(&self.ungranted_divisor),
            free_divisor: read(&self.free_divisor),
        }
    }

    /// Sets how much a gateway may use without a grant.
    pub fn set_rule(&self, rule: SharingRule) {
        let write = |divisor: &AtomicU64, by: Option<u64>| {
            divisor.store(by.unwrap_or(0), Ordering::Relaxed);
        };
        write(&self.ungranted_divisor, rule.ungranted_divisor);
        write(&self.free_divisor, rule.free_divisor);
    }

    /// Adds a subject to the active ones. The caller must have set `is_active` of its meter, so that it is added
    /// once.
    pub fn activate(&self, subject: &Arc<SubjectUsage>) {
        lock(&self.active).push(subject.clone());
    }

    /// Takes the subjects that have become active since the last call.
    pub fn take_active(&self) -> Vec<Arc<SubjectUsage>> {
        std::mem::take(&mut lock(&self.active))
    }
}
