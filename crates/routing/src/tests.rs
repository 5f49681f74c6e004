//! Tests of properties that all policies share.

use super::*;
use proptest::prelude::*;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Usage;

/// An idle backend, for a prompt of 1,000 tokens.
pub(super) fn idle_candidate() -> Candidate {
    let now = clock::epoch();
    let prompt = PromptFingerprint::default();
    Candidate {
        key: 1,
        prompt: 1_000.0,
        output: 100.0,
        is_calibrated: true,
        has_usage: true,
        idle_seconds: 1.0,
        kv_usage: Some(0.1),
        capacity: Some(100_000),
        certainty: 1.0,
        ..LoadEstimator::new(now, Duration::from_secs(5)).candidate(&prompt, now)
    }
}

/// Plausible estimates, and some implausible ones.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        0.0..1e6_f64,
        Just(0.0),
        Just(1e300),
        Just(f64::NAN),
        Just(-1.0)
    ]
}

fn candidate() -> impl Strategy<Value = Candidate> {
    (
        (any::<u16>(), 0_u32..5, any::<bool>(), any::<u64>()),
        (number(), number(), number(), number()),
        (
            number(),
            number(),
            proptest::option::of(number()),
            any::<Option<u32>>(),
        ),
        number(),
    )
        .prop_map(|(backend, tokens, load, overdue)| Candidate {
            in_flight: backend.0.into(),
            weight: backend.1,
            has_adapter: backend.2,
            key: backend.3,
            prompt: tokens.0,
            cached: tokens.1,
            output: tokens.2,
            backlog: tokens.3,
            waiting: load.0,
            running: load.1,
            kv_usage: load.2,
            capacity: load.3.map(u64::from),
            overdue,
            ..idle_candidate()
        })
}

proptest! {
    #[test]
    fn equal_inputs_give_equal_choices(
        candidates in proptest::collection::vec(candidate(), 0..20),
        sequence: u64, seed: u64, session: Option<u64>,
    ) {
        let request = RoutingRequest { sequence, seed, session };
        for kind in PolicyKind::ALL {
            let policy = Policy { kind, ..Policy::default() };
            let choice = policy.pick(&candidates, &request);
            prop_assert_eq!(choice, policy.pick(&candidates, &request));
            match choice {
                None => prop_assert!(candidates.is_empty()),
                Some(choice) => {
                    prop_assert!(choice.index < candidates.len());
                    prop_assert!(REASONS.contains(&choice.reason));
                }
            }
        }
    }
}

/// Returns the choice of a policy for a request without a session.
fn pick(kind: PolicyKind, fleet: &[Candidate]) -> PolicyChoice {
    let policy = Policy {
        kind,
        ..Policy::default()
    };
    policy.pick(fleet, &RoutingRequest::default()).unwrap()
}

fn counts(kind: PolicyKind, fleet: &[Candidate]) -> Vec<u32> {
    let policy = Policy {
        kind,
        ..Policy::default()
    };
    let mut random = fastrand::Rng::with_seed(5);
    let mut counts = vec![0; fleet.len()];
    for sequence in 0..4_000 {
        let request = RoutingRequest {
            sequence,
            seed: random.u64(..),
            session: Some(random.u64(..)),
        };
        counts[policy.pick(fleet, &request).unwrap().index] += 1;
    }
    counts
}

#[test]
fn every_policy_spreads_requests_over_an_idle_fleet() {
    let idle = [1, 2, 3, 4].map(|key| Candidate {
        key: mix(key),
        ..idle_candidate()
    });
    for kind in PolicyKind::ALL {
        let counts = counts(kind, &idle);
        assert!(
            counts.iter().all(|count| (800..1_200).contains(count)),
            "{kind:?} {counts:?}"
        );
    }
}

/// Sends 2,000 requests. After each decision, each backend answers one request. Returns the number of requests
/// of each backend.
fn shares_of(kind: PolicyKind, weights: &[u32]) -> Vec<usize> {
    let policy = Policy {
        kind,
        ..Policy::default()
    };
    let candidate = |(position, weight): (usize, &u32)| Candidate {
        position,
        weight: *weight,
        key: mix(position as u64 + 1),
        ..idle_candidate()
    };
    let mut fleet: Vec<Candidate> = weights.iter().enumerate().map(candidate).collect();
    let mut counts = vec![0; fleet.len()];
    let mut random = fastrand::Rng::with_seed(3);
    for sequence in 0..2_000 {
        let session = Some(random.u64(..));
        let request = RoutingRequest {
            sequence,
            seed: random.u64(..),
            session,
        };
        let chosen = policy.pick(&fleet, &request).unwrap().index;
        let changes = shares::credit_changes(&fleet, chosen);
        for (candidate, change) in fleet.iter_mut().zip(changes) {
            candidate.credit += change;
            candidate.in_flight = candidate.in_flight.saturating_sub(1);
        }
        counts[chosen] += 1;
        fleet[chosen].in_flight += 1;
        fleet[chosen].backlog += 10.0;
    }
    counts
}

#[test]
fn a_weight_is_a_share_under_every_policy() {
    for kind in PolicyKind::ALL {
        let counts = shares_of(kind, &[19, 1]);
        let is_exact = kind.weighs_load() || kind == PolicyKind::RoundRobin;
        let expected = if is_exact { 94..=106 } else { 75..=125 };
        assert!(expected.contains(&counts[1]), "{kind:?} {counts:?}");
        let counts = shares_of(kind, &[2, 1, 1]);
        assert!((930..1_070).contains(&counts[0]), "{kind:?} {counts:?}");
    }
}

#[test]
fn shares_bind_only_in_the_long_run() {
    let warm = Candidate {
        weight: 1,
        cached: 900.0,
        cached_blocks: 7,
        ..idle_candidate()
    };
    let heavy = Candidate {
        weight: 9,
        ..idle_candidate()
    };
    let pick = |credit| pick(PolicyKind::KvAware, &[heavy, Candidate { credit, ..warm }]);
    assert_eq!(
        pick(0),
        PolicyChoice {
            index: 1,
            reason: "cached_prefix"
        }
    );
    assert_eq!(
        pick(-9_000_000),
        PolicyChoice {
            index: 0,
            reason: "weight"
        }
    );
}

#[test]
fn a_session_moves_only_if_its_backend_goes() {
    let fleet: Vec<Candidate> = (1..9)
        .map(|key| Candidate {
            key: mix(key),
            ..idle_candidate()
        })
        .collect();
    let policy = Policy {
        kind: PolicyKind::Session,
        ..Policy::default()
    };
    for session in 0..200 {
        let request = RoutingRequest {
            session: Some(mix(session)),
            ..RoutingRequest::default()
        };
        let before = fleet[policy.pick(&fleet, &request).unwrap().index].key;
        let after = policy.pick(&fleet[1..], &request).unwrap().index + 1;
        assert!(before == fleet[0].key || before == fleet[after].key);
    }
}

#[test]
fn prefix_affinity_holds_until_overload() {
    let idle = idle_candidate();
    let warm = Candidate {
        cached: 600.0,
        in_flight: 2,
        ..idle
    };
    let pick = |fleet: &[Candidate]| pick(PolicyKind::PrefixAffinity, fleet);
    assert_eq!(
        pick(&[idle, warm]),
        PolicyChoice {
            index: 1,
            reason: "cached_prefix"
        }
    );
    let busy = Candidate {
        in_flight: 40,
        ..warm
    };
    assert_eq!(
        pick(&[idle, busy]),
        PolicyChoice {
            index: 0,
            reason: "prefix_too_busy"
        }
    );
    let little = Candidate {
        cached: 20.0,
        ..warm
    };
    assert_eq!(
        pick(&[idle, little]),
        PolicyChoice {
            index: 0,
            reason: "fewest_requests"
        }
    );
}

#[test]
fn policy_names_are_equal_in_configuration_and_metrics() {
    for kind in PolicyKind::ALL {
        let name: StrDeserializer<'_, Error> = kind.as_str().into_deserializer();
        assert_eq!(PolicyKind::deserialize(name), Ok(kind));
    }
}

#[test]
fn uncalibrated_backends_get_the_lowest_prefill_cost() {
    let mut fleet = [
        Candidate {
            prefill: PrefillCost::at_ratio(0.2),
            backlog: 3_000.0,
            prefill_freshness: 1.0,
            ..idle_candidate()
        },
        Candidate {
            prefill: PrefillCost::at_ratio(10.0),
            prefill_freshness: 1.0,
            ..idle_candidate()
        },
        Candidate {
            is_calibrated: false,
            ..idle_candidate()
        },
    ];
    assert_eq!(pick(PolicyKind::KvAware, &fleet).index, 0);
    impute_missing_estimates(&mut fleet);
    assert_eq!(pick(PolicyKind::KvAware, &fleet).index, 2);
    assert_eq!(fleet[2].prefill, fleet[0].prefill);
}

#[test]
fn an_unconfirmed_high_cost_moves_to_the_mean() {
    let usual = Candidate {
        prefill: PrefillCost::at_ratio(0.4),
        prefill_freshness: 1.0,
        ..idle_candidate()
    };
    let millis_with = |ratio, prefill_freshness| {
        let mut fleet = [
            usual,
            Candidate {
                prefill: PrefillCost::at_ratio(ratio),
                prefill_freshness,
                ..usual
            },
        ];
        impute_missing_estimates(&mut fleet);
        fleet.map(|candidate| (1e3 * candidate.prefill.seconds(1_000.0)).round() as u32)
    };
    assert_eq!(millis_with(8.0, 1.0), [60, 1_200]);
    assert_eq!(millis_with(8.0, 0.01), [60, 83]);
    assert_eq!(
        millis_with(0.1, 0.01)[1],
        15,
        "a low estimate gets requests, so it is tested"
    );
}

/// Routes non-streaming requests to backends that respond at once. Returns the number of requests of each
/// backend.
fn simulate_immediate_responses(backend_count: usize, requests: u64, tokens: u64) -> Vec<u32> {
    let epoch = clock::epoch();
    let estimators: Vec<LoadEstimator> = (0..backend_count)
        .map(|_| LoadEstimator::new(epoch, Duration::from_secs(5)))
        .collect();
    let prompt = PromptFingerprint {
        bytes: 400,
        ..PromptFingerprint::default()
    };
    let mut sent = vec![0; backend_count];
    for sequence in 0..requests {
        let now = epoch + Duration::from_millis(100 * (sequence + 1));
        let candidate = |estimator: &LoadEstimator| estimator.candidate(&prompt, now);
        let mut candidates: Vec<Candidate> = estimators.iter().map(candidate).collect();
        impute_missing_estimates(&mut candidates);
        let request = RoutingRequest {
            sequence: mix(sequence),
            ..RoutingRequest::default()
        };
        let index = Policy::default().pick(&candidates, &request).unwrap().index;
        let mut reservation = estimators[index].reserve(&candidates[index], &prompt, false, now);
        let counts = Usage {
            input: Some(tokens),
            output: Some(tokens),
            ..Usage::default()
        };
        estimators[index].answered(&mut reservation, &counts);
        estimators[index].release(reservation, now);
        sent[index] += 1;
    }
    sent
}

#[test]
fn unobserved_backends_get_their_share() {
    assert_eq!(simulate_immediate_responses(8, 800, 10), [100; 8]);
    assert_eq!(
        simulate_immediate_responses(8, 800, 400),
        [100; 8],
        "with long responses too"
    );
}

#[test]
fn equal_costs_go_to_the_longest_idle() {
    let fleet = [1.0, 3.0, 2.0].map(|idle_seconds| Candidate {
        idle_seconds,
        ..idle_candidate()
    });
    for kind in [PolicyKind::KvAware, PolicyKind::LeastRequests] {
        let policy = Policy {
            kind,
            ..Policy::default()
        };
        for sequence in 0..10 {
            let request = RoutingRequest {
                sequence,
                ..RoutingRequest::default()
            };
            assert_eq!(policy.pick(&fleet, &request).unwrap().index, 1, "{kind:?}");
        }
    }
}

#[test]
fn missing_counts_become_the_mean_of_others() {
    let without_usage = Candidate {
        has_usage: false,
        cached: 500.0,
        ..idle_candidate()
    };
    let mut fleet = [
        Candidate {
            prompt: 300.0,
            output: 8.0,
            ..idle_candidate()
        },
        without_usage,
    ];
    impute_missing_estimates(&mut fleet);
    assert_eq!(
        (fleet[1].prompt, fleet[1].cached, fleet[1].output),
        (300.0, 150.0, 8.0)
    );
    let mut fleet = [without_usage];
    impute_missing_estimates(&mut fleet);
    assert_eq!(fleet, [without_usage]);
}

#[test]
fn a_long_prompt_counts_for_more() {
    let long = Candidate {
        in_flight: 1,
        tokens_in_flight: 100_000.0,
        ..idle_candidate()
    };
    let short = |in_flight| Candidate {
        in_flight,
        tokens_in_flight: 10.0 * f64::from(in_flight),
        ..idle_candidate()
    };
    for kind in [PolicyKind::LeastRequests, PolicyKind::P2c] {
        assert_eq!(
            pick(kind, &[long, short(1)]).index,
            1,
            "{kind:?}: equal numbers of requests"
        );
        assert_eq!(
            pick(kind, &[long, short(2)]).index,
            1,
            "{kind:?}: one short request more"
        );
    }
}

#[test]
fn a_backend_that_is_not_overdue_is_preferred() {
    let overdue = Candidate {
        overdue: 0.1,
        ..idle_candidate()
    };
    let busy = Candidate {
        in_flight: 7,
        ..idle_candidate()
    };
    for kind in [PolicyKind::LeastRequests, PolicyKind::P2c] {
        assert_eq!(pick(kind, &[overdue, busy]).index, 1, "{kind:?}");
        let more = Candidate {
            in_flight: 9,
            ..overdue
        };
        assert_eq!(
            pick(kind, &[more, overdue]).index,
            1,
            "{kind:?}: all are overdue, so requests count"
        );
    }
}
