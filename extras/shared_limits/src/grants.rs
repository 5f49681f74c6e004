//! Decides which quotas this gateway claims, and how much it may use while the server is unreachable. This
//! module has no I/O and reads no clock. Times are milliseconds since 1970.

use crate::claims::{StoreAnswer, SubjectClaim};
use std::sync::Arc;
use tokenweir_protocol::named_enum;
use tokenweir_request::access::{
    Quota, QuotaRegistry, SharingRule, SubjectUsage, UNGRANTED_DIVISOR,
};

#[derive(Debug)]
pub(crate) struct Grants {
    registry: Arc<QuotaRegistry>,
    /// The subjects that are in use or hold grants. The subjects with the oldest last claims come first.
    active: Vec<Arc<SubjectUsage>>,
    /// Number of gateways, including this one, at the last answer of the server.
    gateways: u64,
    /// The time of the last answer of the server, or of the start of the gateway.
    answered_at: u64,
    /// The time since which the server has its data. `None`: the server has not answered yet.
    has_data_since: Option<u64>,
    is_settling: bool,
}

named_enum! {
    /// The state of the server of the exchange, as far as grants are concerned.
    pub(crate) enum StoreState {
        /// The server has not answered since the gateway started.
        Starting = "starting",
        /// The server answers claims.
        Connected = "connected",
        /// The server answers, but grants nothing yet, because it has lost its data or never had any.
        Settling = "settling",
        /// The server does not answer.
        Away = "away",
    }
}

const MAX_CLAIMS: usize = 1_000;
/// Time without an answer after which the gateway sends a heartbeat to the server.
const HEARTBEAT_MILLIS: u64 = 1_000;
/// Time without an answer after which the server counts as unreachable.
const AWAY_MILLIS: u64 = 3_000;

impl Grants {
    /// A gateway that starts at `now` and knows of `gateways` gateways.
    pub(crate) fn new(registry: Arc<QuotaRegistry>, gateways: u64, now: u64) -> Self {
        let mut grants = Self {
            registry,
            active: Vec::new(),
            gateways: gateways.max(1),
            answered_at: now,
            has_data_since: None,
            is_settling: false,
        };
        grants.apply_rule(now);
        grants
    }

    pub(crate) fn gateways(&self) -> u64 {
        self.gateways
    }

    pub(crate) fn active_subjects(&self) -> usize {
        self.active.len()
    }

    /// Makes the next claims report what this gateway has used of all quotas.
    pub(crate) fn restate(&mut self, subjects: impl Iterator<Item = Arc<SubjectUsage>>) {
        let inactive = subjects.filter(|subject| subject.restate());
        self.active.extend(inactive);
    }

    /// Returns the claims that are due. `gateways`: the present number of gateways, including this one.
    pub(crate) fn claims(&mut self, now: u64, gateways: u64) -> Vec<SubjectClaim> {
        if self.state(now) != StoreState::Away {
            self.gateways = gateways.max(1);
        }
        self.active.extend(self.registry.take_active());
        let mut claims = Vec::new();
        let mut visited = 0;
        for subject in &self.active {
            if claims.len() >= MAX_CLAIMS {
                break;
            }
            visited += 1;
            subject.with_quotas(|quotas| {
                for quota in quotas {
                    add_claims(&mut claims, subject, quota, now, self.gateways);
                }
            });
        }
        self.active.rotate_left(visited);
        self.apply_rule(now);
        claims
    }

    /// Whether the server has not answered for so long that the gateway should send a heartbeat.
    pub(crate) fn needs_heartbeat(&self, now: u64) -> bool {
        now.saturating_sub(self.answered_at) >= HEARTBEAT_MILLIS
    }

    /// Makes the next claims repeat these claims, because the server did not answer them.
    pub(crate) fn fail(&mut self, claims: &[SubjectClaim], now: u64) {
        self.restate(claims.iter().map(|claim| claim.subject.clone()));
        self.apply_rule(now);
    }

    /// Applies the answers of the server to `claims`, in their order. Returns whether the server has lost its
    /// data since the last answers, so that the gateway must report all quotas again.
    pub(crate) fn settle(
        &mut self,
        claims: &[SubjectClaim],
        answers: &[StoreAnswer],
        now: u64,
    ) -> bool {
        for (claim, answer) in claims.iter().zip(answers) {
            if answer.is_settling {
                continue;
            }
            claim.subject.with_quotas(|quotas| {
                let is_same =
                    |quota: &&mut Quota| quota.unit == claim.unit && quota.period == claim.period;
                if let Some(quota) = quotas.iter_mut().find(is_same) {
                    quota.settle(&claim.claim, &answer.quota);
                }
            });
        }
        self.active.retain(|subject| !subject.retire_if_idle());
        self.answered_at = now;
        self.is_settling = answers.iter().any(|answer| answer.is_settling);
        let has_data_since = answers.iter().map(|answer| answer.has_data_since).max();
        let known = std::mem::replace(&mut self.has_data_since, has_data_since);
        self.apply_rule(now);
        known.is_some() && known != has_data_since
    }

    /// The state of the server at `now`.
    pub(crate) fn state(&self, now: u64) -> StoreState {
        if now.saturating_sub(self.answered_at) > AWAY_MILLIS {
            StoreState::Away
        } else if self.has_data_since.is_none() {
            StoreState::Starting
        } else if self.is_settling {
            StoreState::Settling
        } else {
            StoreState::Connected
        }
    }

    /// Sets how much this gateway may use without a grant.
    pub(crate) fn apply_rule(&mut self, now: u64) {
        let rule = match self.state(now) {
            StoreState::Starting => SharingRule {
                ungranted_divisor: None,
                free_divisor: None,
            },
            StoreState::Connected => SharingRule {
                ungranted_divisor: Some(UNGRANTED_DIVISOR * self.gateways),
                free_divisor: None,
            },
            StoreState::Settling | StoreState::Away => SharingRule {
                ungranted_divisor: Some(self.gateways),
                free_divisor: Some(self.gateways),
            },
        };
        self.registry.set_rule(rule);
    }
}

fn add_claims(
    claims: &mut Vec<SubjectClaim>,
    subject: &Arc<SubjectUsage>,
    quota: &mut Quota,
    now: u64,
    gateways: u64,
) {
    let current = quota.claim(now, gateways);
    let next = quota.claim_next(now, gateways);
    for claim in current.into_iter().chain(next) {
        claims.push(SubjectClaim {
            subject: subject.clone(),
            unit: quota.unit,
            period: quota.period,
            claim,
        });
    }
}
