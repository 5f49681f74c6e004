//! Prefill and decode share a batch: one of them can starve the other.

use super::super::case::{Case, Found, Judgement};
use super::super::measure::Measure;
use super::super::step::Signal;
use super::super::verdict::Severity;
use super::Rule;

/// A prompt that takes many steps, in tokens.
const LONG: f64 = 8_000.0;
/// A cache below this is not what anybody waits for.
const ROOMY: f64 = 0.80;
const FULL: f64 = 0.88;

pub(super) const DECODE_STARVATION: Rule = Rule {
    name: "decode_starvation",
    severity: Severity::Critical,
    meaning: "The prefill of long prompts holds up the streams of everybody else on the replica.",
    remedy: "Lower --max-num-batched-tokens (chunked prefill in smaller pieces), limit long prompts \
             at once (--max-num-partial-prefills, --long-prefill-token-threshold), or give them a \
             replica of their own.",
    disproof: "Streams stand still while no prompt is longer than usual.",
    explained_by: &["kv_thrashing"],
    needs: &[Signal::GapP99, Signal::KvUsage, Signal::Waiting],
    judge: decode_starvation,
};

pub(super) const PREFILL_STARVATION: Rule = Rule {
    name: "prefill_starvation",
    severity: Severity::Warning,
    meaning: "Requests wait for their prefill although the KV cache has room for them.",
    remedy: "Add replicas, raise --max-num-seqs if the batch stands at it, or raise \
             --max-num-batched-tokens if prompts are long and tokens come fast.",
    disproof: "Time in the engine's queue falls while requests still start late.",
    explained_by: &["kv_thrashing", "kv_backlog"],
    needs: &[Signal::Waiting, Signal::KvUsage, Signal::Queued],
    judge: prefill_starvation,
};

fn decode_starvation(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let harm = case.slow_tokens();
    let gap = case.evidence(Measure::GapP99).map_or(0.0, |it| it.value);
    let is_slow = gap >= 0.5 || (gap >= 0.2 && case.has_risen(Measure::GapP99, 4.0));
    let is_full = window.quantile(Signal::KvUsage, 0.9).is_none_or(|usage| usage >= FULL);
    let is_preempting = window.sum(Signal::Preemptions).is_some_and(|it| it >= 2.0);
    let longest = window.max(Signal::LongestPrompt).unwrap_or(0.0);
    if harm.is_empty() || !is_slow || is_full || is_preempting || case.queues() || longest < LONG {
        return Judgement::Absent;
    }
    let stalled = window.max(Signal::Stalled).unwrap_or(0.0);
    let in_flight = window.get(Measure::InFlight).unwrap_or(0.0);
    let is_together = stalled >= 3.0 && stalled >= 0.5 * in_flight;
    let measures = [Measure::GapP99, Measure::EngineGap, Measure::KvUsageP90, Measure::Waiting];
    let found = Found::new(1 + harm.len() + usize::from(is_together), case.evidences(&measures));
    let longest = format!("The longest prompt had about {longest:.0} tokens.");
    Judgement::Present(found.remedy(Some(longest)))
}

fn prefill_starvation(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let has_room = window.quantile(Signal::KvUsage, 0.9).is_some_and(|usage| usage < ROOMY);
    let queue = window.get(Measure::QueueTime);
    let ttft = window.get(Measure::EngineTtft).or(window.get(Measure::Ttft));
    // Without the engine's own count, a queue of this length is told by time in it alone.
    let is_queue = match (queue, ttft) {
        (Some(queue), Some(ttft)) => queue >= 0.5 * ttft,
        (queue, _) => queue.is_some_and(|queue| queue >= 0.5),
    };
    let harm = case.slow_start();
    if !has_room || !case.queues() || !is_queue || harm.is_empty() {
        return Judgement::Absent;
    }
    let measures = [
        Measure::QueueTime,
        Measure::Waiting,
        Measure::Running,
        Measure::KvUsageP90,
        Measure::EngineGap,
    ];
    let most = window.max(Signal::Running).unwrap_or(0.0);
    let is_flat = window.share(Signal::Running, most - 0.5) >= 0.8;
    let cause = if is_flat {
        "the batch stands at its limit (--max-num-seqs)"
    } else {
        "prompts use up the tokens of a step (--max-num-batched-tokens)"
    };
    let evidence = [case.evidences(&measures), harm.clone()].concat();
    Judgement::Present(Found::new(1 + harm.len(), evidence).because(cause))
}
