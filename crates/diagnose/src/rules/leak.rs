//! The rule about requests that never end and KV blocks that are never freed.

use super::rule::DiagnosisRule;
use crate::evaluation::{Evaluation, RuleMatch, RuleOutcome};
use crate::history::{EVERY, StepSignal, WindowMeasure};
use crate::verdict::VerdictSeverity;
use std::time::Duration;

/// Minimum number of requests in the engine that no client of this gateway waits for.
const MIN_ORPHANED_REQUESTS: f64 = 3.0;
/// Minimum share of the KV cache that an idle engine holds.
const MIN_LEAKED_KV_USAGE: f64 = 0.02;
/// How long the condition must hold.
const LEAK_WINDOW: Duration = Duration::from_secs(45);
/// Number of steps in that time.
const LEAK_WINDOW_STEPS: usize = (LEAK_WINDOW.as_secs() / EVERY.as_secs()) as usize;

pub(super) const MEMORY_LEAK: DiagnosisRule = DiagnosisRule {
    name: "memory_leak",
    severity: VerdictSeverity::Critical,
    meaning: "The engine holds requests that no client waits for, or KV blocks that belong to no \
              request.",
    remedy: "Restart the backend when the others can take its load, and report the version: an \
             engine that does not abort the requests of disconnected clients fills up until it \
             thrashes.",
    disproof: "Another client sends requests directly to the backend, not through the gateway.",
    explained_by: &[],
    needs: &[StepSignal::KvUsage, StepSignal::Running, StepSignal::Waiting],
    judge: judge_memory_leak,
};

fn judge_memory_leak(case: &Evaluation<'_>) -> RuleOutcome {
    let window = case.history.window(LEAK_WINDOW);
    let held: Vec<f64> = window.idle_values(StepSignal::KvUsage).collect();
    if held.len() >= LEAK_WINDOW_STEPS && held.iter().all(|usage| *usage >= MIN_LEAKED_KV_USAGE) {
        let evidence = case.evidence_for_all(&[
            WindowMeasure::KvUsage,
            WindowMeasure::Running,
            WindowMeasure::Waiting,
        ]);
        let found = RuleMatch::new(2, evidence);
        return RuleOutcome::Present(found.because("KV blocks are held without any request"));
    }
    if !window.has_signal(StepSignal::InFlight) {
        return RuleOutcome::Unknown("gateway");
    }
    let surplus: Vec<f64> = window.foreign_requests().collect();
    let min_surplus = surplus.iter().copied().fold(f64::INFINITY, f64::min);
    let max_surplus = surplus.iter().copied().fold(0.0, f64::max);
    if surplus.len() < LEAK_WINDOW_STEPS
        || min_surplus < MIN_ORPHANED_REQUESTS
        || has_other_clients(case, max_surplus - min_surplus)
    {
        return RuleOutcome::Absent;
    }
    let evidence = case.evidence_for_all(&[
        WindowMeasure::Running,
        WindowMeasure::Waiting,
        WindowMeasure::InFlight,
        WindowMeasure::KvUsage,
    ]);
    let has_cancelled = case.main().sum(StepSignal::Cancelled).is_some_and(|it| it >= 1.0);
    let found = RuleMatch::new(1 + usize::from(has_cancelled), evidence);
    RuleOutcome::Present(found.because("the engine runs requests that no client waits for"))
}

/// Whether other clients send requests directly to the backend. Their requests end, so that the
/// engine finishes more requests than this gateway sent, and their number varies. Leaked requests
/// stay.
fn has_other_clients(case: &Evaluation<'_>, variation: f64) -> bool {
    let window = case.fast();
    let finished = window.sum(StepSignal::Queued).unwrap_or(0.0);
    let own_finished = window.sum(StepSignal::Finished).unwrap_or(0.0);
    finished > 1.1 * own_finished + MIN_ORPHANED_REQUESTS
        || variation > 2.0 * MIN_ORPHANED_REQUESTS + 0.1 * own_finished
}
