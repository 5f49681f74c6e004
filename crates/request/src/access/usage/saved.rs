//! What was used of quotas of days and months, so that a restart does not renew them.

use super::calendar::QuotaPeriod;
use super::quota::{Quota, QuotaUnit};
use super::subject::SubjectUsage;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;

/// What was used of a quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQuota {
    /// The name of the subject.
    pub subject: String,
    /// What the quota counts.
    pub unit: QuotaUnit,
    /// The period.
    pub period: QuotaPeriod,
    /// The number of the period.
    pub number: u64,
    /// What was used in it.
    pub used: u64,
}

/// The saved quotas of subjects that are not known yet, by subject. A subject of tokens is known from its first
/// request on.
#[derive(Debug, Default)]
pub struct AwaitedQuotas(Mutex<HashMap<String, Vec<SavedQuota>>>);

impl SavedQuota {
    fn is_of(&self, quota: &Quota) -> bool {
        self.unit == quota.unit && self.period == quota.period
    }
}

impl SubjectUsage {
    /// What was used of quotas that outlast a restart.
    pub fn saved_quotas(&self) -> Vec<SavedQuota> {
        let saved = |quota: &Quota| {
            let (number, used) = quota.in_period();
            SavedQuota {
                subject: self.name.to_string(),
                unit: quota.unit,
                period: quota.period,
                number,
                used,
            }
        };
        let is_long =
            |quota: &&Quota| matches!(quota.period, QuotaPeriod::Day | QuotaPeriod::Month);
        let is_used = |quota: &&Quota| quota.used() > 0;
        self.with_quotas(|quotas| {
            let kept = quotas.iter().filter(is_long).filter(is_used);
            kept.map(saved).collect()
        })
    }

    fn restore(&self, saved: &[SavedQuota], now: u64) {
        self.with_quotas(|quotas| {
            for quota in quotas {
                if let Some(saved) = saved.iter().find(|saved| saved.is_of(quota)) {
                    quota.restore(saved.number, saved.used, now);
                }
            }
        });
    }
}

impl AwaitedQuotas {
    /// Restores what subjects had used: now if they are `known`, or when they are.
    pub fn restore(&self, saved: &[SavedQuota], known: impl Iterator<Item = Arc<SubjectUsage>>) {
        let mut by_subject: HashMap<String, Vec<SavedQuota>> = HashMap::new();
        for quota in saved {
            let of_subject = by_subject.entry(quota.subject.clone()).or_default();
            of_subject.push(quota.clone());
        }
        *lock(&self.0) = by_subject;
        known.for_each(|subject| self.restore_subject(&subject));
    }

    /// Restores what a subject had used that is known from now on.
    pub(super) fn restore_subject(&self, subject: &SubjectUsage) {
        let saved = lock(&self.0).remove(&*subject.name);
        if let Some(saved) = saved {
            subject.restore(&saved, clock::unix_millis());
        }
    }

    /// What subjects that are not known yet had used. Forgets what is of a period that has ended.
    pub fn list(&self) -> Vec<SavedQuota> {
        let second = clock::unix_millis() / 1_000;
        let mut awaited = lock(&self.0);
        awaited.retain(|_, quotas| {
            quotas.retain(|quota| quota.number >= quota.period.number_at(second));
            !quotas.is_empty()
        });
        awaited.values().flatten().cloned().collect()
    }
}
