//! Tests of recorded routing decisions.

use super::*;
use crate::record::fixtures::{believed, streamed};
use std::sync::Arc;
use tokenweir_engine::address::BackendId;
use tokenweir_routing::{Candidate, Policy, PolicyChoice, RoutingContext, RoutingRequest};

fn backend_id(index: usize) -> BackendId {
    BackendId::new(&format!("vllm-{index}"))
}

/// Candidates with these backlogs, in tokens.
fn candidates_with_backlogs(backlogs: &[f64]) -> Vec<Candidate> {
    let candidate = |(position, backlog): (usize, &f64)| Candidate {
        position,
        backlog: *backlog,
        ..believed()
    };
    backlogs.iter().enumerate().map(candidate).collect()
}

fn decide(fleet: &[Candidate], index: usize) -> RoutingDecision {
    let context = RoutingContext::new(Policy::default(), fleet.to_vec(), RoutingRequest::default());
    let choice = PolicyChoice {
        index,
        reason: "turn",
    };
    let ids: Arc<[BackendId]> = (0..fleet.len()).map(backend_id).collect();
    RoutingDecision::new(context, choice, BackendCondition::default(), &ids)
}

fn ranked_backend_names(decision: &RoutingDecision) -> Vec<String> {
    decision
        .ranked_candidates()
        .iter()
        .map(|candidate| candidate.backend.to_string())
        .collect()
}

#[test]
fn a_decision_records_all_of_a_few_candidates() {
    let fleet = candidates_with_backlogs(&[500.0, 100.0, 900.0]);
    for (chosen, candidate) in fleet.iter().enumerate() {
        let decision = decide(&fleet, chosen);
        assert_eq!(
            ranked_backend_names(&decision),
            ["vllm-1", "vllm-0", "vllm-2"]
        );
        assert_eq!(decision.selected().candidate, candidate);
        assert_eq!(decision.selected().backend, &backend_id(chosen));
        assert_eq!(
            (decision.candidate_count(), decision.omitted_candidates),
            (3, 0)
        );
    }
}

#[test]
fn the_selected_and_the_cheapest_candidates_are_kept() {
    // The last candidates are the cheapest, and the selected one is the most expensive.
    let backlogs: Vec<f64> = (0..1_000).map(|n| 1e6 - f64::from(n) * 1e3).collect();
    let decision = decide(&candidates_with_backlogs(&backlogs), 0);
    let expected: Vec<String> = (985..1_000)
        .rev()
        .chain([0])
        .map(|index| backend_id(index).to_string())
        .collect();
    assert_eq!(ranked_backend_names(&decision), expected);
    assert_eq!(decision.selected().backend, &backend_id(0));
    assert_eq!(
        (decision.candidate_count(), decision.omitted_candidates),
        (1_000, 984)
    );
}

#[test]
fn candidates_with_nan_costs_are_kept_once() {
    let decision = decide(&candidates_with_backlogs(&[f64::NAN; 20]), 7);
    let mut names = ranked_backend_names(&decision);
    assert_eq!(decision.selected().backend, &backend_id(7));
    names.sort();
    names.dedup();
    assert_eq!(names.len(), RoutingDecision::MAX_RECORDED_CANDIDATES);
}

#[test]
fn cache_regret_counts_tokens_cached_elsewhere() {
    let mut fleet = candidates_with_backlogs(&[0.0, 0.0, 0.0]);
    for (candidate, cached) in fleet.iter_mut().zip([0.0, 700.0, 900.0]) {
        candidate.cached = cached;
    }
    let regret = |chosen| decide(&fleet, chosen).cache_regret() as u32;
    assert_eq!([0, 1, 2].map(regret), [900, 200, 0]);
}

#[test]
fn predicted_ttft_is_compared_from_sending() {
    let mut record = streamed();
    let (actual, predicted) = record.actual_and_predicted_ttft().unwrap();
    assert!(
        (actual - 0.09).abs() < 1e-9,
        "sent at 10 ms, first output at 100 ms: {actual}"
    );
    assert!((predicted - 0.08).abs() < 1e-9);
    record.timings.first_output = None;
    assert_eq!(record.actual_and_predicted_ttft(), None);
    assert_eq!(
        record.reported_and_predicted_cached_tokens(),
        Some((8, 6.0))
    );
    record.observed.usage.cached = None;
    assert_eq!(
        record.reported_and_predicted_cached_tokens(),
        None,
        "a missing count is not zero"
    );
}
