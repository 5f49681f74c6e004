//! The rule about requests that never end and KV blocks that are never freed.

use super::rule::DiagnosisRule;
use super::shared::has_other_clients;
use crate::evaluation::{Evaluation, RuleMatch, RuleResult};
use crate::history::{EVERY, StepSignal, WindowMeasure};
use crate::verdict::VerdictSeverity;
use std::time::Duration;

/// Minimum number of requests in the engine that no client of this gateway waits for.
const MIN_ORPHANED_REQUESTS: f64 = 3.0;
/// Minimum share of the KV cache that an idle engine must keep in use to be reported for a leak.
const MIN_LEAKED_KV_USAGE: f64 = 0.02;
/// Time for which the condition must hold.
const LEAK_WINDOW: Duration = Duration::from_secs(45);
/// Number of steps in [`LEAK_WINDOW`].
const LEAK_WINDOW_STEPS: usize = (LEAK_WINDOW.as_secs() / EVERY.as_secs()) as usize;

pub(super) const MEMORY_LEAK: DiagnosisRule = DiagnosisRule {
    name: "memory_leak",
    severity: VerdictSeverity::Critical,
    meaning: "The engine holds requests that no client waits for, or KV blocks that belong to no \
              request.",
    evidence: "For 45 s the engine had no request and held ≥ 2 % of its KV blocks. Or for 45 s it \
               had at least three requests more than this gateway has in flight there.",
    excluded: "`shared_backend`, other clients seem to use the backend: it starts more requests than this gateway \
               sends, or the difference varies",
    remedy: "Restart the backend when its peers can take its load.",
    disproof: "Another client sends requests directly to the backend, not through the gateway.",
    pages: false,
    explained_by: &["shared_backend"],
    needs: &[
        StepSignal::KvUsage,
        StepSignal::Running,
        StepSignal::Waiting,
    ],
    judge: judge_memory_leak,
};

fn judge_memory_leak(evaluation: &Evaluation<'_>) -> RuleResult {
    let window = evaluation.history.window(LEAK_WINDOW);
    let held: Vec<f64> = window.idle_values(StepSignal::KvUsage).collect();
    if held.len() >= LEAK_WINDOW_STEPS && held.iter().all(|usage| *usage >= MIN_LEAKED_KV_USAGE) {
        let evidence = evaluation.evidence_for_all(&[
            WindowMeasure::KvUsage,
            WindowMeasure::Running,
            WindowMeasure::Waiting,
        ]);
        let rule_match = RuleMatch::new(2, evidence);
        return Ok(Some(
            rule_match.because("KV blocks are held without any request"),
        ));
    }
    if !window.has_signal(StepSignal::InFlight) {
        return Err(vec!["gateway"]);
    }
    let surplus: Vec<f64> = window.foreign_requests().collect();
    let min_surplus = surplus.iter().copied().fold(f64::INFINITY, f64::min);
    let max_surplus = surplus.iter().copied().fold(0.0, f64::max);
    if surplus.len() < LEAK_WINDOW_STEPS
        || min_surplus < MIN_ORPHANED_REQUESTS
        || has_other_clients(evaluation, max_surplus - min_surplus)
    {
        return Ok(None);
    }
    let evidence = evaluation.evidence_for_all(&[
        WindowMeasure::Running,
        WindowMeasure::Waiting,
        WindowMeasure::InFlight,
        WindowMeasure::KvUsage,
    ]);
    let has_cancelled = evaluation
        .long_window()
        .sum(StepSignal::Cancelled)
        .is_some_and(|count| count >= 1.0);
    let rule_match = RuleMatch::new(1 + usize::from(has_cancelled), evidence);
    Ok(Some(rule_match.because(
        "the engine runs requests that no client waits for",
    )))
}
