//! Decides whether a failed request is sent to another backend, before and after its first output. The decision
//! depends on the attempt limit, the retry budget, side effects, and whether the request may crash backends.

pub(super) mod peer_answers;

use peer_answers::PeerAnswers;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::limits::client_network;
use tokenweir_protocol::{clock, settings};
use tokenweir_request::record::{Attempt, FailoverDenialReason, RequestRecord};
use tokenweir_routing::resilience::{FailoverPolicy, FailureKind};
use tower::retry::budget::{Budget, TpsBudget};
use xxhash_rust::xxh3::xxh3_64;

settings! {
    /// Limits of retries on other backends.
    #[derive(Copy)]
    pub struct RetrySettings {
        /// Maximum number of further backends for a request. Failed connections do not count.
        pub attempts: u32,
        /// Share of all requests that may be retried, from 0 to 1.
        pub budget_ratio: f32,
        /// Retries per second that are allowed in any case, half of them for one tenant or address. Not a key
        /// of the configuration.
        #[serde(skip)]
        pub min_retries_per_second: u32,
        /// Longest time that a response is buffered until its first output. Not a key of the configuration.
        #[serde(skip)]
        pub first_output_buffer_timeout: Duration,
    }
}

/// Decides whether failed requests are retried on another backend. Holds the retry budget.
#[derive(Debug)]
pub struct RetryController {
    /// Attempts and budget, from the section `retry`.
    pub settings: RetrySettings,
    /// The retry budget of all requests together.
    budget: Arc<TpsBudget>,
    /// The retry budgets of groups of tenants, indexed by [`RetryBudgetShare`]. They prevent a tenant whose
    /// requests fail on every backend from using up the budget of other tenants.
    budget_shares: Arc<[TpsBudget]>,
    /// The answers of peers (other backends of the same model) to requests that one backend refused.
    pub(super) peer_answers: Arc<PeerAnswers>,
}

/// The index of the budget share for the retries of a request: a hash of the tenant, or of the client address
/// without a tenant, modulo the number of shares.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryBudgetShare(pub(super) usize);

/// A request whose last attempt failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailedRequest {
    /// The failure of the last attempt.
    pub kind: FailureKind,
    /// Number of failed attempts of the request. Attempts that could not reach their backend do not count.
    pub failed_attempts: u32,
    /// Number of backends to which the request was sent, including the last attempt.
    pub tried_backends: usize,
    /// Whether the request may have side effects besides its response.
    pub has_side_effects: bool,
}

const BUDGET_WINDOW: Duration = Duration::from_secs(10);
/// Number of backends that died while they had a request, from which the request is suspected to be the cause.
const POISON_CRASHES: usize = 2;
/// Time for which the death of a backend counts. Without this limit, a long stream that outlives several
/// backends would be suspected.
const CRASH_TIME: Duration = Duration::from_mins(10);
/// Number of budget shares. A hash of the tenant or client address selects the share, so some tenants use a
/// share together.
const BUDGET_SHARE_COUNT: usize = 64;
/// Maximum number of backends that are asked for one stored response. It bounds the cost of a request for an
/// unknown id.
const MAX_LOOKUP_BACKENDS: usize = 32;

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts: 2,
            budget_ratio: 0.2,
            min_retries_per_second: 10,
            first_output_buffer_timeout: Duration::from_mins(1),
        }
    }
}

impl RetryController {
    /// A controller with a full budget.
    pub fn new(settings: RetrySettings) -> Self {
        let RetrySettings {
            budget_ratio,
            min_retries_per_second,
            ..
        } = settings;
        let new_share = |_| {
            TpsBudget::new(
                BUDGET_WINDOW,
                min_retries_per_second.div_ceil(2),
                budget_ratio,
            )
        };
        Self {
            settings,
            budget: Arc::new(TpsBudget::new(
                BUDGET_WINDOW,
                min_retries_per_second,
                budget_ratio,
            )),
            budget_shares: (0..BUDGET_SHARE_COUNT).map(new_share).collect(),
            peer_answers: Arc::new(PeerAnswers::new(clock::now())),
        }
    }

    /// A controller with the new settings and the state of this controller: the answers of peers and the
    /// remaining budget. The budget starts anew if `budget_ratio` or `min_retries_per_second` changes.
    pub fn with_settings(&self, settings: RetrySettings) -> Self {
        let has_same_budget = self
            .settings
            .budget_ratio
            .total_cmp(&settings.budget_ratio)
            .is_eq()
            && self.settings.min_retries_per_second == settings.min_retries_per_second;
        let mut next = Self {
            peer_answers: self.peer_answers.clone(),
            ..Self::new(settings)
        };
        if has_same_budget {
            (next.budget, next.budget_shares) = (self.budget.clone(), self.budget_shares.clone());
        }
        next
    }

    /// Counts a new request of a budget share, which raises the number of allowed retries.
    pub(super) fn deposit(&self, share: RetryBudgetShare) {
        self.budget.deposit();
        self.budget_shares[share.0].deposit();
    }

    /// Decides whether a failed request may be retried on another backend, and withdraws the retry from the
    /// budget. The error is the reason why not.
    pub(super) fn allow(
        &self,
        share: RetryBudgetShare,
        failed: FailedRequest,
    ) -> Result<(), FailoverDenialReason> {
        let FailedRequest {
            kind,
            failed_attempts,
            tried_backends,
            has_side_effects,
        } = failed;
        match kind.failover() {
            FailoverPolicy::Always
                if kind == FailureKind::NotStored && tried_backends >= MAX_LOOKUP_BACKENDS =>
            {
                Err(FailoverDenialReason::MaxAttempts)
            }
            FailoverPolicy::Always => Ok(()),
            FailoverPolicy::Never => Err(FailoverDenialReason::NotRetryable),
            FailoverPolicy::Conditional if has_side_effects => {
                Err(FailoverDenialReason::SideEffects)
            }
            FailoverPolicy::Conditional if failed_attempts > self.settings.attempts => {
                Err(FailoverDenialReason::MaxAttempts)
            }
            // The tenant's share is checked first, so that a tenant with an exhausted share does not
            // use up the common budget.
            FailoverPolicy::Conditional if !self.budget_shares[share.0].withdraw() => {
                Err(FailoverDenialReason::RetryBudget)
            }
            FailoverPolicy::Conditional if self.budget.withdraw() => Ok(()),
            FailoverPolicy::Conditional => Err(FailoverDenialReason::RetryBudget),
        }
    }
}

/// Whether a request may be the cause of crashes. `kind`: the crash of `backend` in the present attempt. True
/// if another backend also died a short time ago while it had this request. Equal requests of other clients do
/// not count, because all requests of a backend break off together when it dies.
pub fn is_poison(
    record: &RequestRecord,
    backend: &BackendId,
    kind: FailureKind,
    now: Instant,
) -> bool {
    if !kind.is_crash() {
        return false;
    }
    let is_recent = |at: Instant| now.saturating_duration_since(at) < CRASH_TIME;
    let is_crash = |attempt: &&Attempt| {
        attempt.ended.is_some_and(is_recent)
            && attempt.failure_kind().is_some_and(FailureKind::is_crash)
    };
    let crashed = record
        .attempts
        .iter()
        .filter(is_crash)
        .map(|attempt| &attempt.backend);
    let mut backends: Vec<&BackendId> = crashed.chain([backend]).collect();
    backends.sort_unstable();
    backends.dedup();
    backends.len() >= POISON_CRASHES
}

impl RetryBudgetShare {
    pub(super) fn for_record(record: &RequestRecord) -> Self {
        let hash = match (&record.caller, client_network(record.client)) {
            (Some(identity), _) => xxh3_64(identity.tenant.as_bytes()),
            (None, IpAddr::V4(address)) => xxh3_64(&address.octets()),
            (None, IpAddr::V6(network)) => xxh3_64(&network.octets()),
        };
        Self(hash as usize % BUDGET_SHARE_COUNT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: RetryBudgetShare = RetryBudgetShare(0);

    fn failed_request(kind: FailureKind, failed_attempts: u32) -> FailedRequest {
        FailedRequest {
            kind,
            failed_attempts,
            tried_backends: failed_attempts as usize,
            has_side_effects: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn side_effects_and_timeouts_are_not_retried() {
        use FailoverDenialReason::{MaxAttempts, NotRetryable, SideEffects};
        let default = RetrySettings::default();
        let no_budget = RetrySettings {
            attempts: 0,
            budget_ratio: 0.0,
            min_retries_per_second: 0,
            ..default
        };
        let busy = |failed_attempts| failed_request(FailureKind::Busy, failed_attempts);
        let unreachable = |failed_attempts| FailedRequest {
            has_side_effects: true,
            ..failed_request(FailureKind::Unreachable, failed_attempts)
        };
        let lookup = |tried_backends| FailedRequest {
            tried_backends,
            ..failed_request(FailureKind::NotStored, 0)
        };
        for (settings, failed, expected) in [
            (default, busy(1), Ok(())),
            (default, busy(2), Ok(())),
            (default, busy(3), Err(MaxAttempts)),
            (default, lookup(MAX_LOOKUP_BACKENDS - 1), Ok(())),
            (default, lookup(MAX_LOOKUP_BACKENDS), Err(MaxAttempts)),
            (
                default,
                FailedRequest {
                    has_side_effects: true,
                    ..busy(1)
                },
                Err(SideEffects),
            ),
            (
                default,
                failed_request(FailureKind::SlowOutput, 1),
                Err(NotRetryable),
            ),
            // A request that reached no backend may always be retried.
            (no_budget, unreachable(0), Ok(())),
            (no_budget, unreachable(99), Ok(())),
        ] {
            let retry = RetryController::new(settings);
            assert_eq!(retry.allow(SHARE, failed), expected, "{failed:?}");
        }
    }

    fn count_allowed(retry: &RetryController, share: RetryBudgetShare) -> usize {
        let is_allowed = |_: &i32| {
            retry
                .allow(share, failed_request(FailureKind::Busy, 1))
                .is_ok()
        };
        (0..1_000).filter(is_allowed).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_fifth_or_ten_per_second_are_retried() {
        let retry = RetryController::new(RetrySettings::default());
        let shares = [
            RetryBudgetShare(0),
            RetryBudgetShare(1),
            RetryBudgetShare(2),
        ];
        let count_in_all_shares = || {
            shares
                .iter()
                .map(|share| count_allowed(&retry, *share))
                .sum::<usize>()
        };
        assert_eq!(count_in_all_shares(), 100, "the minimum of ten seconds");
        (0..1_000).for_each(|_| shares.iter().for_each(|share| retry.deposit(*share)));
        assert_eq!(count_in_all_shares(), 600);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_tenant_leaves_budget_to_others() {
        let retry = RetryController::new(RetrySettings::default());
        let (greedy, other) = (RetryBudgetShare(1), RetryBudgetShare(2));
        (0..1_000).for_each(|_| retry.deposit(greedy));
        (0..100).for_each(|_| retry.deposit(other));
        assert_eq!(
            count_allowed(&retry, greedy),
            200 + 50,
            "own fifth and half of the minimum"
        );
        assert_eq!(count_allowed(&retry, other), 20 + 50);
    }

    #[test]
    fn retry_shares_belong_to_tenants_or_addresses() {
        let mut record = tokenweir_request::record::fixtures::streamed();
        record.caller = None;
        let mut share_index = |address: &str| {
            record.client = address.parse().unwrap();
            RetryBudgetShare::for_record(&record).0
        };
        assert_ne!(share_index("192.0.2.1"), share_index("192.0.2.2"));
        assert_eq!(
            share_index("2001:db8::1"),
            share_index("2001:db8::2"),
            "a client can use its network"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn new_retry_settings_keep_an_unchanged_retry_budget() {
        let settings = RetrySettings {
            budget_ratio: 0.0,
            min_retries_per_second: 1,
            ..RetrySettings::default()
        };
        let retry = RetryController::new(settings);
        let retry_busy_request =
            |retry: &RetryController| retry.allow(SHARE, failed_request(FailureKind::Busy, 1));
        (0..10).for_each(|_| assert_eq!(retry_busy_request(&retry), Ok(())));
        assert_eq!(
            retry_busy_request(&retry),
            Err(FailoverDenialReason::RetryBudget)
        );
        let retry = retry.with_settings(RetrySettings {
            attempts: 5,
            ..settings
        });
        assert_eq!(retry.settings.attempts, 5);
        assert_eq!(
            retry_busy_request(&retry),
            Err(FailoverDenialReason::RetryBudget),
            "the budget stays used"
        );
        let retry = retry.with_settings(RetrySettings {
            min_retries_per_second: 2,
            ..settings
        });
        assert_eq!(
            retry_busy_request(&retry),
            Ok(()),
            "a changed budget starts anew"
        );
    }

    #[test]
    fn a_second_death_makes_a_request_suspect() {
        let mut record = tokenweir_request::record::fixtures::streamed();
        let now = record.timings.accepted + 2 * CRASH_TIME;
        let record_start = record.timings.accepted;
        let attempt = |backend: &str, failure: FailureKind, age: Duration| Attempt {
            backend: BackendId::new(backend),
            address: ("h".into(), 1),
            provider: "vllm",
            span_id: 1,
            started: record_start,
            ended: now.checked_sub(age),
            status: None,
            failure: Some(failure.as_str()),
            engine_error: None,
            proxy: None,
        };
        let second = Duration::from_secs(1);
        for (earlier, kind, expected) in [
            (
                attempt("a", FailureKind::Died, second),
                FailureKind::Died,
                true,
            ),
            (
                attempt("a", FailureKind::EngineDead, second),
                FailureKind::Died,
                true,
            ),
            (
                attempt("b", FailureKind::Died, second),
                FailureKind::Died,
                false,
            ),
            (
                attempt("a", FailureKind::Died, CRASH_TIME),
                FailureKind::Died,
                false,
            ),
            (
                attempt("a", FailureKind::ServerError, second),
                FailureKind::Died,
                false,
            ),
            (
                attempt("a", FailureKind::Died, second),
                FailureKind::Down,
                false,
            ),
        ] {
            record.attempts = vec![earlier];
            let is_suspected = is_poison(&record, &BackendId::new("b"), kind, now);
            assert_eq!(
                is_suspected, expected,
                "{kind:?} after {:?}",
                record.attempts
            );
        }
    }
}
