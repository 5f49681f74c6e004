//! What is kept of a decision.

use super::super::sample::{believed, streamed};
use super::*;
use crate::routing::{Ask, PolicyKind};

fn id(index: usize) -> BackendId {
    BackendId::new(&format!("vllm-{index}"))
}

/// Candidates with these backlogs.
fn fleet(backlogs: &[f64]) -> Vec<Candidate> {
    let of = |(place, backlog): (usize, &f64)| Candidate { place, backlog: *backlog, ..believed() };
    backlogs.iter().enumerate().map(of).collect()
}

fn decided(policy: &Policy, shadow: &[Policy], fleet: &[Candidate], index: usize) -> Decision {
    let question = Question::new(*policy, fleet.to_vec(), Ask::default());
    let choice = Choice { index, reason: "turn" };
    let ids: Arc<[BackendId]> = (0..fleet.len()).map(id).collect();
    Decision::new(question, choice, Condition::default(), &ids, shadow)
}

fn names(decision: &Decision) -> Vec<String> {
    decision.ranked().iter().map(|considered| considered.backend.to_string()).collect()
}

#[test]
fn of_a_few_candidates_all_are_kept() {
    let fleet = fleet(&[500.0, 100.0, 900.0]);
    for (chosen, candidate) in fleet.iter().enumerate() {
        let decision = decided(&Policy::default(), &[], &fleet, chosen);
        assert_eq!(names(&decision), ["vllm-1", "vllm-0", "vllm-2"]);
        assert_eq!(decision.chosen().candidate, candidate);
        assert_eq!(decision.chosen().backend, &id(chosen));
        assert_eq!((decision.candidates(), decision.left_out), (3, 0));
    }
}

#[test]
fn of_many_candidates_the_chosen_one_and_the_fifteen_that_cost_least_are_kept() {
    // The cheapest are the last ones; the chosen one is the dearest of all.
    let backlogs: Vec<f64> = (0..1_000).map(|n| 1e6 - f64::from(n) * 1e3).collect();
    let decision = decided(&Policy::default(), &[], &fleet(&backlogs), 0);
    let expected: Vec<String> =
        (985..1_000).rev().chain([0]).map(|index| id(index).to_string()).collect();
    assert_eq!(names(&decision), expected);
    assert_eq!(decision.chosen().backend, &id(0));
    assert_eq!((decision.candidates(), decision.left_out), (1_000, 984));
}

#[test]
fn what_is_no_number_is_kept_too_each_candidate_once() {
    let decision = decided(&Policy::default(), &[], &fleet(&[f64::NAN; 20]), 7);
    let mut names = names(&decision);
    assert_eq!(decision.chosen().backend, &id(7));
    names.sort();
    names.dedup();
    assert_eq!(names.len(), Decision::MOST);
}

#[test]
fn a_weight_changes_what_is_compared_and_not_the_time_that_is_predicted() {
    let mut fleet = fleet(&[1_000.0, 1_000.0]);
    fleet[1].weight = 4;
    let decision = decided(&Policy::default(), &[], &fleet, 0);
    let [heavy, light] = decision.ranked()[..] else { panic!("two are kept") };
    assert!((light.ttft - heavy.ttft).abs() < 1e-9);
    assert!((light.cost() - 4.0 * heavy.cost()).abs() < 1e-9);
    assert_eq!((heavy.backend, light.backend), (&id(1), &id(0)));
}

#[test]
fn the_regret_of_a_policy_is_the_time_that_its_choice_would_have_lost_or_saved() {
    // 10,000 tokens a second: 20,000 tokens of backlog are two seconds.
    let mut fleet = fleet(&[20_000.0, 0.0]);
    fleet[0].in_flight = 0;
    fleet[1].in_flight = 9;
    let shadow = [PolicyKind::LeastRequests, PolicyKind::KvAware]
        .map(|kind| Policy { kind, ..Policy::default() });
    let ours = Policy { kind: PolicyKind::RoundRobin, ..Policy::default() };
    let regrets = |chosen| {
        let decision = decided(&ours, &shadow, &fleet, chosen);
        let of = |shadow: &Shadow| (shadow.policy, shadow.is_same, shadow.regret.round() as i64);
        decision.shadow.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(regrets(0), [("least_requests", true, 0), ("kv_aware", false, -2)]);
    assert_eq!(regrets(1), [("least_requests", false, 2), ("kv_aware", true, 0)]);
}

#[test]
fn a_prediction_is_compared_with_the_time_since_the_request_was_sent() {
    let mut record = streamed();
    let (actual, predicted) = record.actual_and_predicted_ttft().unwrap();
    assert!((actual - 0.09).abs() < 1e-9, "sent at 10 ms, first output at 100 ms: {actual}");
    assert!((predicted - 0.08).abs() < 1e-9);
    record.timings.first_output = None;
    assert_eq!(record.actual_and_predicted_ttft(), None);
    assert_eq!(record.reported_and_predicted_cached(), Some((8, 6.0)));
    record.observed.usage.cached = None;
    assert_eq!(record.reported_and_predicted_cached(), None, "not told is not zero");
}
