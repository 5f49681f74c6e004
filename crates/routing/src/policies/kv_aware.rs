//! Policy `kv_aware`: picks the candidate with the least predicted time to first token (TTFT), with a charge
//! for the delay of other requests.
//!
//! ```text
//! prefill  = uncached × per_token
//! ttft     = base + queue + prefill + adapter
//! cost     = (base + queue + prefill × (1 + waiting)) × crowding
//!            + prefill × 4 × k + pressure × full × uncached ÷ prompt + adapter
//!
//! queue    = backlog × per_token
//! waiting  = waiting requests per backend, at most 8
//! crowding = (1 + requests) ÷ (1 + mean of requests over the candidates)
//! k        = kv_usage + (uncached + output) ÷ capacity, at most 1
//! full     = max(k − 0.9, 0) ÷ 0.1
//! ```
//!
//! The first line of `cost` is the delay of this request and of those that wait behind its prefill. The numbers
//! in brackets show a measurement without the term: the lost percentage points of goodput, and the TTFT p99,
//! which is 8.5 s with all terms (`docs/benchmarks/routing.md`, "Terms").
//!
//! - `base` and `per_token` are learned from the first outputs of the backend, so a slower backend gets fewer
//!   requests. While no output confirms it, an estimate moves towards the estimates of the other candidates,
//!   see [`impute_missing_estimates`](crate::impute_missing_estimates).
//! - `crowding` (1.8, 7.9 s for the prefill): a backend with more requests computes each step more slowly, and
//!   a prefill there delays more outputs. `crowding` also counts waiting requests, because the requests of a
//!   burst that have just been sent slow down the next steps. It is relative to the mean of all candidates, so
//!   prefill does not outweigh the queue where all backends have many requests.
//! - `waiting` (2.0, 9.3 s): in an M/M/1 queue, as many requests wait for a prefill as are in the queue.
//! - `k` (eviction 0.3, 8.4 s): computing a prompt evicts other blocks, and the more so the fuller the cache
//!   is. Without this term, small and empty caches stay overloaded (`overload_tests.rs` in `lab`).
//! - `full` (0.2, 8.2 s): a request makes the engine preempt others in a full cache, however short its prefill.
//!   With this term, two real engines had 4 preemptions instead of 14. The factor `uncached ÷ prompt` keeps a
//!   request at a full backend that has its prefix. From 0.1 to 5 s the value of `pressure` does not matter.
//! - `adapter` counts if the backend has not loaded the LoRA adapter of the request.
//!
//! `docs/decisions/0014-routing-cost.md` lists the terms that were measured and left out.

pub use super::selection::tie_limit;
use super::selection::{least, longest_idle};
use super::session;
use crate::{CachedSource, Candidate, PolicyChoice, PrefillCost, RoutingRequest};
use serde::Serialize;
use tokenweir_protocol::settings;

settings! {
    /// Weights of the policy `kv_aware`.
    #[derive(Copy)]
    pub struct KvAwareSettings {
        /// Seconds added at a backend with a full KV cache for a request without a cached prefix there. Nothing is
        /// added up to a usage of 0.9.
        pub pressure: f64,
        /// Share of the prompt that counts as cached at the backend of its session, if less is known to
        /// be cached.
        pub session: f64,
        /// Age in seconds at which the last scraped load counts for half in predictions.
        pub horizon_seconds: f64,
    }
}

impl Default for KvAwareSettings {
    fn default() -> Self {
        Self {
            pressure: 0.5,
            session: 0.5,
            horizon_seconds: 5.0,
        }
    }
}

/// Cost of the blocks that a prefill evicts from a full cache, relative to the cost of the prefill. The evicted
/// blocks are computed again, and then evict other blocks.
const EVICTION: f64 = 4.0;
/// Maximum KV cache usage at which the engine rarely preempts requests.
const FREE_USAGE: f64 = 0.9;
/// Number of waiting requests per backend above which the cost of prefill does not grow.
const MAX_WAITING: f64 = 8.0;
/// Seconds that a backend takes to load a LoRA adapter.
const ADAPTER_SECONDS: f64 = 1.0;

/// The mean load of all candidates of a decision.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FleetLoad {
    /// Mean number of waiting requests per candidate backend, at most [`MAX_WAITING`].
    waiting: f64,
    /// Mean number of waiting and running requests.
    requests: f64,
}

/// The terms of a cost in seconds: see the [module documentation](self).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CostTerms {
    /// Time to the first output of an empty prompt × crowding.
    pub base: f64,
    /// Time of the prompts that the engine computes before this one × crowding.
    pub queue: f64,
    /// Time of the prompt tokens of this request that are not cached × crowding.
    pub prefill: f64,
    /// Delay of the waiting requests that `prefill` causes.
    pub charge: f64,
    /// Cost of the blocks that `prefill` evicts from the KV cache, and of preemptions in a full cache.
    pub pressure: f64,
    /// Time to load the LoRA adapter of the request. 0: the backend has loaded it.
    pub adapter: f64,
    /// Predicted TTFT. Not a part of the cost.
    #[serde(skip)]
    pub ttft: f64,
}

/// The choice of the candidate with the lowest cost, and its reason.
pub(crate) fn pick(
    settings: &KvAwareSettings,
    candidates: &[Candidate],
    request: &RoutingRequest,
) -> PolicyChoice {
    let home = home(candidates, request);
    let fleet = FleetLoad::new(candidates);
    let parts = |(index, candidate): (usize, &Candidate)| {
        let terms = terms(settings, candidate, home == Some(index), &fleet);
        let CostTerms { pressure, ttft, .. } = terms;
        Parts {
            cost: terms.cost(),
            pressure,
            ttft,
        }
    };
    let parts = candidates.iter().enumerate().map(parts).collect();
    let decision = Decision {
        settings,
        candidates,
        request,
        home,
        fleet,
        parts,
    };
    let index = decision.choose(decision.costs(), home);
    PolicyChoice {
        index,
        reason: decision.reason(index),
    }
}

/// Index of the candidate to which the session of a request is hashed. `None`: the request has no session.
pub(crate) fn home(candidates: &[Candidate], request: &RoutingRequest) -> Option<usize> {
    request
        .session
        .and_then(|session| session::highest_scored(candidates, session, |_| true))
}

/// The terms of the cost of a candidate. `is_session_candidate`: the session of the request is hashed
/// to this candidate. `fleet`: all candidates of the decision.
#[inline] // a decision evaluates each candidate
pub fn terms(
    settings: &KvAwareSettings,
    candidate: &Candidate,
    is_session_candidate: bool,
    fleet: &FleetLoad,
) -> CostTerms {
    terms_with(
        settings,
        candidate,
        cached(settings, candidate, is_session_candidate),
        fleet,
    )
}

/// The terms of the cost of a candidate with `cached` cached prompt tokens.
#[inline]
pub(super) fn terms_with(
    settings: &KvAwareSettings,
    candidate: &Candidate,
    cached: f64,
    fleet: &FleetLoad,
) -> CostTerms {
    let uncached = candidate.prompt - cached;
    let crowding = (1.0 + candidate.waiting + candidate.running) / (1.0 + fleet.requests);
    let k = match (candidate.kv_usage, candidate.capacity) {
        (Some(usage), Some(capacity)) => usage + (uncached + candidate.output) / capacity as f64,
        (usage, _) => usage.unwrap_or(0.0),
    };
    let k = k.clamp(0.0, 1.0);
    let full = (k - FREE_USAGE).max(0.0) / (1.0 - FREE_USAGE);
    let uncached_share = uncached / candidate.prompt.max(1.0);
    let PrefillCost { base, per_token } = candidate.prefill;
    let queue = candidate.backlog * per_token;
    let prefill = uncached * per_token;
    let adapter = if candidate.has_adapter {
        0.0
    } else {
        ADAPTER_SECONDS
    };
    let ttft = base + queue + prefill + adapter;
    CostTerms {
        base: base * crowding,
        queue: queue * crowding,
        prefill: prefill * crowding,
        charge: prefill * fleet.waiting * crowding,
        pressure: prefill * k * EVICTION + settings.pressure * full * uncached_share,
        adapter,
        ttft,
    }
}

/// Predicted TTFT of a candidate in seconds: see the [module documentation](self).
/// `is_session_candidate`: the session of the request is hashed to this candidate.
pub fn ttft(settings: &KvAwareSettings, candidate: &Candidate, is_session_candidate: bool) -> f64 {
    terms(
        settings,
        candidate,
        is_session_candidate,
        &FleetLoad::default(),
    )
    .ttft
}

/// Tokens of the prompt that probably need no computation.
pub(super) fn cached(
    settings: &KvAwareSettings,
    candidate: &Candidate,
    is_session_candidate: bool,
) -> f64 {
    let mut cached = candidate.cached;
    if is_session_candidate && candidate.cached_source == CachedSource::Approximate {
        cached = cached.max(settings.session * candidate.prompt);
    }
    cached
}

impl FleetLoad {
    /// The mean load of these candidates.
    pub fn new(candidates: &[Candidate]) -> Self {
        let count = candidates.len().max(1) as f64;
        let mut waiting = 0.0;
        let mut running = 0.0;
        for candidate in candidates {
            waiting += candidate.waiting;
            running += candidate.running;
        }
        Self {
            waiting: (waiting / count).min(MAX_WAITING),
            requests: (waiting + running) / count,
        }
    }
}

impl CostTerms {
    /// The cost that the policy compares, in seconds.
    #[inline]
    pub fn cost(&self) -> f64 {
        let Self {
            base,
            queue,
            prefill,
            charge,
            pressure,
            adapter,
            ..
        } = self;
        base + queue + prefill + charge + pressure + adapter
    }
}

/// One decision of the policy `kv_aware`: its input, and the cost of each candidate.
pub(super) struct Decision<'a> {
    pub(super) settings: &'a KvAwareSettings,
    pub(super) candidates: &'a [Candidate],
    pub(super) request: &'a RoutingRequest,
    /// Index of the candidate to which the session is hashed. `None`: the request has no session.
    pub(super) home: Option<usize>,
    pub(super) fleet: FleetLoad,
    /// The cost and the terms of each candidate, by the index of the candidate.
    pub(super) parts: Vec<Parts>,
}

/// The cost of a candidate, the cost terms that a routing reason can name, and the predicted TTFT.
pub(super) struct Parts {
    pub(super) cost: f64,
    pub(super) pressure: f64,
    pub(super) ttft: f64,
}

impl Decision<'_> {
    pub(super) fn costs(&self) -> impl Iterator<Item = f64> + Clone {
        self.parts.iter().map(|parts| parts.cost)
    }

    /// Returns the index of the candidate with the lowest cost. Candidates that tie take turns, but a session
    /// stays at its backend, `home`.
    pub(super) fn choose(
        &self,
        costs: impl Iterator<Item = f64> + Clone,
        home: Option<usize>,
    ) -> usize {
        let limit = tie_limit(least(costs.clone()));
        home.filter(|home| costs.clone().nth(*home).is_some_and(|cost| cost <= limit))
            .unwrap_or_else(|| longest_idle(self.candidates, costs, limit, self.request.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrefillCost;
    use crate::tests::idle_candidate;

    fn choose(candidates: &[Candidate]) -> PolicyChoice {
        choose_for(&RoutingRequest::default(), candidates)
    }

    fn choose_for(request: &RoutingRequest, candidates: &[Candidate]) -> PolicyChoice {
        pick(&KvAwareSettings::default(), candidates, request)
    }

    const fn choice(index: usize, reason: &'static str) -> PolicyChoice {
        PolicyChoice { index, reason }
    }

    #[test]
    fn a_short_queue_can_beat_a_prefix() {
        let idle = idle_candidate();
        let warm = Candidate {
            cached: 500.0,
            cached_blocks: 4,
            backlog: 20_000.0,
            ..idle_candidate()
        };
        assert_eq!(choose(&[warm, idle]), choice(1, "prefix_too_busy"));
        let warm = Candidate {
            backlog: 400.0,
            ..warm
        };
        assert_eq!(choose(&[warm, idle]), choice(0, "cached_prefix"));
    }

    #[test]
    fn a_faster_backend_gets_more_requests() {
        let fast = PrefillCost {
            base: 0.05,
            per_token: 2.5e-5,
        };
        let mut fleet = [
            Candidate {
                prefill: fast,
                ..idle_candidate()
            },
            idle_candidate(),
        ];
        let mut counts = [0; 2];
        for _ in 0..100 {
            let index = choose(&fleet).index;
            counts[index] += 1;
            fleet[index].backlog += 1_000.0;
        }
        assert!((75..=85).contains(&counts[0]), "{counts:?}");
    }

    /// Returns the cost of the only candidate of a decision.
    fn cost(candidate: Candidate) -> f64 {
        let settings = KvAwareSettings::default();
        terms(&settings, &candidate, false, &FleetLoad::default()).cost()
    }

    #[test]
    fn cost_grows_with_kv_cache_usage() {
        let at = |usage| {
            cost(Candidate {
                kv_usage: Some(usage),
                ..idle_candidate()
            })
        };
        let costs: Vec<f64> = (0..=19).map(|n| at(f64::from(n) / 20.0)).collect();
        assert!(costs.windows(2).all(|pair| pair[1] > pair[0]));
        assert!(at(0.95) - at(0.90) > 4.0 * (at(0.55) - at(0.50)));
        assert!(at(1e9).is_finite());
        let cached = |usage| {
            cost(Candidate {
                cached: 1_000.0,
                kv_usage: Some(usage),
                ..idle_candidate()
            })
        };
        assert!(
            (cached(0.97) - cached(0.1)).abs() < 1e-9,
            "nothing is computed"
        );
    }

    #[test]
    fn full_caches_are_avoided_unless_they_help() {
        let full = Candidate {
            kv_usage: Some(0.97),
            ..idle_candidate()
        };
        assert_eq!(choose(&[full, idle_candidate()]), choice(1, "kv_pressure"));
        let hot = Candidate {
            cached: 900.0,
            cached_blocks: 7,
            ..full
        };
        assert_eq!(choose(&[hot, idle_candidate()]), choice(0, "cached_prefix"));
    }

    #[test]
    fn fewer_running_requests_win_between_equal_queues() {
        let crowded = Candidate {
            running: 12.0,
            ..idle_candidate()
        };
        let other = Candidate {
            running: 6.0,
            ..idle_candidate()
        };
        assert_eq!(choose(&[crowded, other]), choice(1, "lowest_ttft"));
    }

    #[test]
    fn a_session_stays_until_its_backend_is_busy() {
        for prompt in [1_000.0, 5.0] {
            let mut fleet = [1, 2, 3].map(|key| Candidate {
                key,
                prompt,
                ..idle_candidate()
            });
            let request = RoutingRequest {
                session: Some(77),
                ..RoutingRequest::default()
            };
            let first = choose_for(&request, &fleet);
            assert_eq!(first.reason, "session", "{prompt} tokens");
            for sequence in 0..10 {
                assert_eq!(
                    choose_for(
                        &RoutingRequest {
                            sequence,
                            ..request
                        },
                        &fleet
                    ),
                    first
                );
            }
            fleet[first.index].backlog = 50_000.0;
            let moved = choose_for(&request, &fleet);
            assert_ne!(moved.index, first.index, "{prompt} tokens");
            assert_eq!(moved.reason, "session_too_busy", "{prompt} tokens");
        }
    }

    #[test]
    fn a_loaded_adapter_wins_unless_it_takes_longer() {
        let without = Candidate {
            has_adapter: false,
            ..idle_candidate()
        };
        assert_eq!(choose(&[without, idle_candidate()]).index, 1);
        let busy = Candidate {
            backlog: 50_000.0,
            ..idle_candidate()
        };
        assert_eq!(choose(&[without, busy]).index, 0);
    }

    #[test]
    fn uncached_tokens_cost_more_in_busy_pools() {
        let warm = Candidate {
            cached: 900.0,
            backlog: 2_500.0,
            ..idle_candidate()
        };
        let calm = [warm, idle_candidate()];
        assert_eq!(choose(&calm).index, 1);
        let busy = calm.map(|candidate| Candidate {
            waiting: 4.0,
            ..candidate
        });
        assert_eq!(choose(&busy).index, 0);
    }

    #[test]
    fn backends_without_load_reports_are_picked_equally_often() {
        let unknown = Candidate {
            kv_usage: None,
            capacity: None,
            certainty: 0.0,
            ..idle_candidate()
        };
        let counts = (0..300).fold([0; 3], |mut counts, sequence| {
            let request = RoutingRequest {
                sequence,
                ..RoutingRequest::default()
            };
            counts[choose_for(&request, &[unknown; 3]).index] += 1;
            counts
        });
        assert_eq!(counts, [100; 3]);
    }
}
