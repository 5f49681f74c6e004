//! Saved usage of the quotas of days and months, so that a restart does not reset them.

use super::calendar::QuotaPeriod;
use super::quota::{Quota, QuotaUnit};
use super::subject::SubjectUsage;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;

/// The used part of one quota, as `shared_limits.file` stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQuota {
    /// The tenant, key or model: see [`SubjectUsage::name`].
    pub subject: String,
    /// Whether the quota counts requests or tokens.
    pub unit: QuotaUnit,
    /// The period of the quota: a day or a month.
    pub period: QuotaPeriod,
    /// Number of the day or month since 1970.
    pub number: u64,
    /// The usage in the period.
    pub used: u64,
}

/// The saved quotas of subjects that are not known yet, by subject. The subject of a token becomes known with
/// its first request.
#[derive(Debug, Default)]
pub struct AwaitedQuotas(Mutex<HashMap<String, Vec<SavedQuota>>>);

impl SavedQuota {
    fn is_of(&self, quota: &Quota) -> bool {
        self.unit == quota.unit && self.period == quota.period
    }
}

impl SubjectUsage {
    /// The usage of the quotas that survive a restart.
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
    /// Restores the usage of subjects: at once for the `known` ones, and later for others when they become
    /// known.
    pub fn restore(&self, saved: &[SavedQuota], known: impl Iterator<Item = Arc<SubjectUsage>>) {
        let mut by_subject: HashMap<String, Vec<SavedQuota>> = HashMap::new();
        for quota in saved {
            let of_subject = by_subject.entry(quota.subject.clone()).or_default();
            of_subject.push(quota.clone());
        }
        *lock(&self.0) = by_subject;
        known.for_each(|subject| self.restore_subject(&subject));
    }

    /// Restores the usage of a subject that has become known.
    pub(super) fn restore_subject(&self, subject: &SubjectUsage) {
        let saved = lock(&self.0).remove(&*subject.name);
        if let Some(saved) = saved {
            subject.restore(&saved, clock::unix_millis());
        }
    }

    /// The saved usage of subjects that are not known yet. Drops the usage of periods that have ended.
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
