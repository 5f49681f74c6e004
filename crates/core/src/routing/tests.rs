//! What every policy must do, whatever it is.

use super::*;
use clap::ValueEnum;
use proptest::prelude::*;
use std::time::{Duration, Instant};

/// An idle replica of a prompt of 1,000 tokens.
pub(super) fn replica() -> Candidate {
    Candidate {
        place: 0,
        in_flight: 0,
        weight: 1,
        has_adapter: true,
        key: 1,
        prompt: 1_000.0,
        cached: 0.0,
        output: 100.0,
        backlog: 0.0,
        prefill: Prefill::default(),
        is_tried: true,
        is_told: true,
        rested: 1.0,
        waiting: 0.0,
        running: 0.0,
        said: LastSaid::default(),
        kv_usage: Some(0.1),
        capacity: Some(100_000),
        certainty: 1.0,
        slot_wait: 0.0,
        overdue: 0.0,
    }
}

/// Any number that a belief could come to be, and some that it never should.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..1e6_f64, Just(0.0), Just(1e300), Just(f64::NAN), Just(-1.0)]
}

fn candidate() -> impl Strategy<Value = Candidate> {
    (
        (any::<u16>(), 0_u32..5, any::<bool>(), any::<u64>()),
        (number(), number(), number(), number()),
        (number(), number(), proptest::option::of(number()), any::<Option<u32>>()),
        (number(), number()),
    )
        .prop_map(|(own, tokens, load, late)| Candidate {
            in_flight: own.0.into(),
            weight: own.1,
            has_adapter: own.2,
            key: own.3,
            prompt: tokens.0,
            cached: tokens.1,
            output: tokens.2,
            backlog: tokens.3,
            waiting: load.0,
            running: load.1,
            kv_usage: load.2,
            capacity: load.3.map(u64::from),
            slot_wait: late.0,
            overdue: late.1,
            ..replica()
        })
}

proptest! {
    #[test]
    fn every_policy_names_a_candidate_and_equal_inputs_give_equal_choices(
        candidates in proptest::collection::vec(candidate(), 0..20),
        sequence: u64, seed: u64, session: Option<u64>,
    ) {
        let ask = Ask { sequence, seed, session };
        for kind in PolicyKind::ALL {
            let policy = Policy { kind, ..Policy::default() };
            let choice = policy.pick(&candidates, &ask);
            prop_assert_eq!(choice, policy.pick(&candidates, &ask));
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

fn counts(kind: PolicyKind, fleet: &[Candidate]) -> Vec<u32> {
    let policy = Policy { kind, ..Policy::default() };
    let mut random = fastrand::Rng::with_seed(5);
    let mut counts = vec![0; fleet.len()];
    for sequence in 0..4_000 {
        let ask = Ask { sequence, seed: random.u64(..), session: Some(random.u64(..)) };
        counts[policy.pick(fleet, &ask).unwrap().index] += 1;
    }
    counts
}

#[test]
fn every_policy_shares_out_an_idle_fleet() {
    let idle = [1, 2, 3, 4].map(|key| Candidate { key: mix(key), ..replica() });
    for kind in PolicyKind::ALL {
        let counts = counts(kind, &idle);
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{kind:?} {counts:?}");
    }
}

#[test]
fn a_replica_of_twice_the_weight_gets_about_twice_as_much_where_turns_or_luck_decide() {
    let fleet =
        [(1, 2), (2, 1)].map(|(key, weight)| Candidate { key: mix(key), weight, ..replica() });
    for kind in [PolicyKind::RoundRobin, PolicyKind::Random, PolicyKind::Session] {
        let counts = counts(kind, &fleet);
        assert!((2_500..2_850).contains(&counts[0]), "{kind:?} {counts:?}");
    }
}

#[test]
fn a_session_moves_only_if_its_own_replica_goes() {
    let fleet: Vec<Candidate> =
        (1..9).map(|key| Candidate { key: mix(key), ..replica() }).collect();
    let policy = Policy { kind: PolicyKind::Session, ..Policy::default() };
    for session in 0..200 {
        let ask = Ask { session: Some(mix(session)), ..Ask::default() };
        let before = fleet[policy.pick(&fleet, &ask).unwrap().index].key;
        let after = policy.pick(&fleet[1..], &ask).unwrap().index + 1;
        assert!(before == fleet[0].key || before == fleet[after].key);
    }
}

#[test]
fn prefix_affinity_goes_where_the_prompt_is_until_that_replica_has_far_more_to_do() {
    let policy = Policy { kind: PolicyKind::PrefixAffinity, ..Policy::default() };
    let warm = Candidate { cached: 600.0, in_flight: 2, ..replica() };
    let pick = |fleet: &[Candidate]| policy.pick(fleet, &Ask::default()).unwrap();
    assert_eq!(pick(&[replica(), warm]), Choice { index: 1, reason: "cached_prefix" });
    let busy = Candidate { in_flight: 40, ..warm };
    assert_eq!(pick(&[replica(), busy]), Choice { index: 0, reason: "prefix_too_busy" });
    let little = Candidate { cached: 20.0, ..warm };
    assert_eq!(pick(&[replica(), little]), Choice { index: 0, reason: "fewest_requests" });
}

#[test]
fn a_name_in_the_configuration_is_the_name_in_metrics() {
    assert_eq!(PolicyKind::value_variants(), PolicyKind::ALL);
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
    }
}

#[test]
fn a_replica_that_has_not_answered_yet_is_taken_to_be_as_fast_as_the_fastest() {
    let line = |base| Prefill { base, per_token: 1e-5 };
    let mut fleet = [
        Candidate { prefill: line(0.01), in_flight: 3, backlog: 3_000.0, ..replica() },
        Candidate { prefill: line(0.5), ..replica() },
        Candidate { is_tried: false, ..replica() },
    ];
    let policy = Policy::default();
    assert_eq!(policy.pick(&fleet, &Ask::default()).unwrap().index, 0);
    lend(&mut fleet);
    assert_eq!(policy.pick(&fleet, &Ask::default()).unwrap().index, 2);
    assert_eq!((fleet[1].prefill, fleet[2].prefill), (line(0.5), line(0.01)));
}

/// Ledgers of replicas that answer each request, which is no stream, at once; and what each was sent.
fn answered_at_once(replicas: usize, requests: u64, tokens: u64) -> Vec<u32> {
    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    let epoch = Instant::now();
    let ledgers: Vec<Ledger> =
        (0..replicas).map(|_| Ledger::new(epoch, Duration::from_secs(5))).collect();
    let (prompt, mut sent) = (Prompt { bytes: 400, ..Prompt::default() }, vec![0; replicas]);
    for sequence in 0..requests {
        let now = epoch + Duration::from_millis(100 * (sequence + 1));
        let of = |ledger: &Ledger| ledger.candidate(&prompt, now);
        let mut candidates: Vec<Candidate> = ledgers.iter().map(of).collect();
        lend(&mut candidates);
        let ask = Ask { sequence: mix(sequence), ..Ask::default() };
        let index = Policy::default().pick(&candidates, &ask).unwrap().index;
        let mut promise = ledgers[index].promise(&candidates[index], &prompt, false, now);
        let counts = Counts { prompt: Some(tokens), cached: None, output: Some(tokens) };
        ledgers[index].answered(&mut promise, &counts);
        ledgers[index].give_back(promise, now);
        sent[index] += 1;
    }
    sent
}

#[test]
fn replicas_that_have_not_answered_yet_are_not_passed_over_for_those_whose_prompts_are_short() {
    assert_eq!(answered_at_once(8, 800, 10), [100; 8]);
    assert_eq!(answered_at_once(8, 800, 400), [100; 8], "nor preferred to those with long ones");
}

#[test]
fn of_equals_the_one_that_has_rested_longest_is_sent_the_next() {
    let fleet = [1.0, 3.0, 2.0].map(|rested| Candidate { rested, ..replica() });
    for kind in [PolicyKind::KvAware, PolicyKind::LeastRequests] {
        let policy = Policy { kind, ..Policy::default() };
        for sequence in 0..10 {
            let ask = Ask { sequence, ..Ask::default() };
            assert_eq!(policy.pick(&fleet, &ask).unwrap().index, 1, "{kind:?}");
        }
    }
}

#[test]
fn tokens_that_nobody_has_told_are_lent_with_what_is_believed_cached_of_them() {
    let untold = Candidate { is_told: false, cached: 500.0, ..replica() };
    let mut fleet = [Candidate { prompt: 300.0, output: 8.0, ..replica() }, untold];
    lend(&mut fleet);
    assert_eq!((fleet[1].prompt, fleet[1].cached, fleet[1].output), (300.0, 150.0, 8.0));
    let mut nobody = [untold];
    lend(&mut nobody);
    assert_eq!(nobody, [untold]);
}

#[test]
fn policies_that_count_requests_prefer_a_backend_that_is_not_overdue() {
    let overdue = Candidate { overdue: 0.1, ..replica() };
    let busy = Candidate { in_flight: 7, ..replica() };
    for kind in [PolicyKind::LeastRequests, PolicyKind::P2c] {
        let policy = Policy { kind, ..Policy::default() };
        let pick = |fleet: &[Candidate]| policy.pick(fleet, &Ask::default()).unwrap().index;
        assert_eq!(pick(&[overdue, busy]), 1, "{kind:?}");
        let more = Candidate { in_flight: 9, ..overdue };
        assert_eq!(pick(&[more, overdue]), 1, "{kind:?}: while all are, the fewest requests count");
    }
}
