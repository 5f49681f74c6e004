//! The rule about requests that never end and KV blocks that are never freed.

use super::shared::has_other_clients;
use crate::history::EVERY;
use crate::rule::prelude::*;
use std::time::Duration;

/// Minimum number of requests in the engine that no client of this gateway waits for.
const MIN_ORPHANED_REQUESTS: f64 = 3.0;
/// Minimum KV usage of an idle engine that counts as a leak.
const MIN_LEAKED_KV_USAGE: f64 = 0.02;
/// Time for which the condition must hold.
const LEAK_WINDOW: Duration = Duration::from_secs(45);
const RECENT_STEPS: usize = (RECENT.as_secs() / EVERY.as_secs()) as usize;
const LEAK_WINDOW_STEPS: usize = (LEAK_WINDOW.as_secs() / EVERY.as_secs()) as usize;

/// Minimum KV usage for a leak in an engine that runs requests.
const MIN_UNEXPLAINED_USAGE: f64 = 0.5;
/// Minimum ratio of the KV usage to what the running requests need, and minimum ratio of the usage per running
/// request to the usual one.
const UNEXPLAINED_FACTOR: f64 = 3.0;
/// Minimum number of steps during the growth of the usage. Their usage must differ from the start and the end
/// by the second value.
const MIN_GROWING_STEPS: usize = 2;
const MIN_GROWN: f64 = 0.1;
/// Minimum mean number of running requests from which the number of blocks per request can be computed.
const MIN_RUNNING: f64 = 0.3;

pub(super) const MEMORY_LEAK: DiagnosisRule = DiagnosisRule {
    name: "memory_leak",
    severity: "critical",
    lowest: VerdictSeverity::Critical,
    meaning: "The engine holds requests that no client waits for, or KV blocks that belong to no \
              request.",
    evidence: "For 45 s the engine had no request and held ≥ 2 % of its KV blocks. Or for 45 s it \
               had at least three requests more than this gateway has in flight there. Or for 20 s it held half of its KV \
               blocks or more after a growth over several samples, three times what the lengths of its running requests \
               explain, for each of them three times as much as usual, and requests wait or start late.",
    excluded: "`shared_backend`, other clients seem to use the backend: it starts more requests than this gateway \
               sends, or the difference varies",
    remedy: "Restart the backend when its peers can take its load.",
    disproof: "Another client sends requests directly to the backend, not through the gateway.",
    needs: &[
        StepSignal::KvUsage,
        StepSignal::Running,
        StepSignal::Waiting,
    ],
    load: LoadDependence::None,
    judge: judge_memory_leak,
    ..DiagnosisRule::ENGINE
};

fn judge_memory_leak(evaluation: &Evaluation<'_>) -> RuleResult {
    let window = evaluation.history.window(LEAK_WINDOW);
    let held: Vec<f64> = window.idle_values(StepSignal::KvUsage).collect();
    if held.len() >= LEAK_WINDOW_STEPS && held.iter().all(|usage| *usage >= MIN_LEAKED_KV_USAGE) {
        let measures = [
            WindowMeasure::KvUsage,
            WindowMeasure::Running,
            WindowMeasure::Waiting,
        ];
        let found = evaluation.found(2, &measures);
        return Ok(Some(
            found.because("KV blocks are held without any request"),
        ));
    }
    if let Some(found) = unexplained_usage(evaluation) {
        return Ok(Some(found));
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
    let measures = [
        WindowMeasure::Running,
        WindowMeasure::Waiting,
        WindowMeasure::InFlight,
        WindowMeasure::KvUsage,
    ];
    let has_cancelled = evaluation.long.total(StepSignal::Cancelled) >= 1.0;
    let found = evaluation.found(1 + usize::from(has_cancelled), &measures);
    Ok(Some(found.because(
        "the engine runs requests that no client waits for",
    )))
}

/// The match for an engine that holds far more KV blocks than its running requests need. Waiting requests hold
/// no blocks.
fn unexplained_usage(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let history = evaluation.history;
    let recent = evaluation.recent;
    let least = recent
        .values(StepSignal::KvUsage)
        .fold(f64::INFINITY, f64::min);
    let usage = recent.mean(StepSignal::KvUsage)?;
    let running = recent.mean(StepSignal::Running)?.max(MIN_RUNNING);
    let waiting = recent.mean(StepSignal::Waiting).unwrap_or(0.0);
    let long = evaluation.long;
    let prompt = long.ratio(StepSignal::PromptTokens, StepSignal::FirstTokens, 5.0)?;
    let output = long.ratio(StepSignal::GenerationTokens, StepSignal::FirstTokens, 5.0)?;
    let longest = long.max(StepSignal::LongestPrompt).unwrap_or(prompt);
    // The gateway knows the lengths of its own requests, including those that have just begun.
    let held = recent.max(StepSignal::HeldTokens).unwrap_or(0.0) * running / (running + waiting);
    let explained = held.max(running * (prompt + output)) + longest;
    let capacity = history.last_known_load()?.capacity()? as f64;
    let past_running = history.past(WindowMeasure::Running)?.max(MIN_RUNNING);
    let usual = history.past(WindowMeasure::KvUsage)? / past_running;
    // A leak grows over time. A cache that fills up at once, or without harm to clients, is just well used.
    let past_usage = usual * past_running;
    let grew = long
        .values(StepSignal::KvUsage)
        .filter(|value| *value >= past_usage + MIN_GROWN && *value <= usage - MIN_GROWN);
    let is_harmful = waiting >= 1.0 || !evaluation.slow_start_evidence().is_empty();
    let is_unexplained = least >= MIN_UNEXPLAINED_USAGE
        && is_harmful
        && grew.count() >= MIN_GROWING_STEPS
        && recent.len() >= RECENT_STEPS
        && usage * capacity >= UNEXPLAINED_FACTOR * explained
        && usage / running >= UNEXPLAINED_FACTOR * usual;
    if !is_unexplained {
        return None;
    }
    let measures = [
        WindowMeasure::KvUsage,
        WindowMeasure::Running,
        WindowMeasure::Waiting,
        WindowMeasure::PreemptionRate,
    ];
    let cause = format!(
        "KV blocks leak: {:.0} % of the cache is held, and its running requests explain {:.0} %",
        100.0 * usage,
        (100.0 * explained / capacity).max(1.0)
    );
    Some(evaluation.found(3, &measures).because(cause))
}
