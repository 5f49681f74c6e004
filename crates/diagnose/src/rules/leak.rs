//! What is held for ever: requests that never end, blocks that are never free.

use super::super::EVERY;
use super::super::case::{Case, Found, Judgement};
use super::super::measure::Measure;
use super::super::step::Signal;
use super::super::verdict::Severity;
use super::Rule;
use std::time::Duration;

/// Requests that nobody waits for.
const GHOSTS: f64 = 3.0;
/// Share of the KV cache that an idle engine may hold.
const HELD: f64 = 0.02;
/// For how long it must be so.
const HELD_FOR: Duration = Duration::from_secs(45);
/// Steps in that time.
const STEPS: usize = (HELD_FOR.as_secs() / EVERY.as_secs()) as usize;

pub(super) const MEMORY_LEAK: Rule = Rule {
    name: "memory_leak",
    severity: Severity::Critical,
    meaning: "The engine holds requests that nobody waits for, or blocks of no request.",
    remedy: "Restart the replica when the others can take its work, and report the version: an \
             engine that does not abort what clients left fills up until it thrashes.",
    disproof: "Somebody else sends requests to the replica, past the gateway.",
    explained_by: &[],
    needs: &[Signal::KvUsage, Signal::Running, Signal::Waiting],
    judge: leak,
};

fn leak(case: &Case<'_>) -> Judgement {
    let window = case.history.window(HELD_FOR);
    let held: Vec<f64> = window.idle_values(Signal::KvUsage).collect();
    if held.len() >= STEPS && held.iter().all(|usage| *usage >= HELD) {
        let evidence = case.evidences(&[Measure::KvUsage, Measure::Running, Measure::Waiting]);
        let found = Found::new(2, evidence);
        return Judgement::Present(found.because("blocks are held while no request is there"));
    }
    if !window.tells(Signal::InFlight) {
        return Judgement::Unknown("gateway");
    }
    let beyond: Vec<f64> = window.beyond_in_flight().collect();
    let ghosts = beyond.iter().copied().fold(f64::INFINITY, f64::min);
    let most = beyond.iter().copied().fold(0.0, f64::max);
    if beyond.len() < STEPS || ghosts < GHOSTS || is_bypassed(case, most - ghosts) {
        return Judgement::Absent;
    }
    let evidence =
        case.evidences(&[Measure::Running, Measure::Waiting, Measure::InFlight, Measure::KvUsage]);
    let has_cancelled = case.main().sum(Signal::Cancelled).is_some_and(|it| it >= 1.0);
    let found = Found::new(1 + usize::from(has_cancelled), evidence);
    Judgement::Present(found.because("requests are running that nobody waits for"))
}

/// Whether others send requests there past the gateway: theirs end, so that the engine finishes
/// more than were sent from here, and their number moves. Ghosts stay.
fn is_bypassed(case: &Case<'_>, movement: f64) -> bool {
    let window = case.fast();
    let finished = window.sum(Signal::Queued).unwrap_or(0.0);
    let ours = window.sum(Signal::Finished).unwrap_or(0.0);
    finished > 1.1 * ours + GHOSTS || movement > 2.0 * GHOSTS + 0.1 * ours
}
