//! Rules about prefill and decode, which share a batch, so that one of them can starve the other.

use super::rule::DiagnosisRule;
use crate::evaluation::{Evaluation, RuleMatch, RuleOutcome};
use crate::history::{StepSignal, WindowMeasure};
use crate::verdict::VerdictSeverity;

/// Minimum number of tokens of a prompt whose prefill takes many steps.
const LONG_PROMPT_TOKENS: f64 = 8_000.0;
/// KV usage below which the cache has free blocks for waiting requests.
const FREE_CACHE_USAGE: f64 = 0.80;
/// KV usage from which the cache counts as full.
const FULL_CACHE_USAGE: f64 = 0.88;

pub(super) const DECODE_STARVATION: DiagnosisRule = DiagnosisRule {
    name: "decode_starvation",
    severity: VerdictSeverity::Critical,
    meaning: "The prefill of long prompts delays the streams of all other requests on the backend.",
    remedy: "Lower --max-num-batched-tokens (chunked prefill in smaller pieces), limit concurrent \
             long prompts (--max-num-partial-prefills, --long-prefill-token-threshold), or give \
             them a backend of their own.",
    disproof: "Streams pause while no prompt is longer than usual.",
    explained_by: &["kv_thrashing"],
    needs: &[StepSignal::GapP99, StepSignal::KvUsage, StepSignal::Waiting],
    judge: judge_decode_starvation,
};

pub(super) const PREFILL_STARVATION: DiagnosisRule = DiagnosisRule {
    name: "prefill_starvation",
    severity: VerdictSeverity::Warning,
    meaning: "Requests wait for their prefill although the KV cache has free blocks.",
    remedy: "Add backends, raise --max-num-seqs if the batch is at that limit, or raise \
             --max-num-batched-tokens if prompts are long and tokens come fast.",
    disproof: "Time in the engine's queue falls while requests still start late.",
    explained_by: &["kv_thrashing", "kv_backlog"],
    needs: &[StepSignal::Waiting, StepSignal::KvUsage, StepSignal::Queued],
    judge: judge_prefill_starvation,
};

fn judge_decode_starvation(evaluation: &Evaluation<'_>) -> RuleOutcome {
    let window = evaluation.short_window();
    let harm = evaluation.slow_inter_token_evidence();
    let gap = evaluation.evidence(WindowMeasure::GapP99).map_or(0.0, |evidence| evidence.value);
    let is_slow = gap >= 0.5 || (gap >= 0.2 && evaluation.has_risen(WindowMeasure::GapP99, 4.0));
    let usage = window.quantile(StepSignal::KvUsage, 0.9);
    let is_full = usage.is_none_or(|usage| usage >= FULL_CACHE_USAGE);
    let is_preempting = window.sum(StepSignal::Preemptions).is_some_and(|count| count >= 2.0);
    let longest = window.max(StepSignal::LongestPrompt).unwrap_or(0.0);
    let has_other_cause = is_full || is_preempting || evaluation.has_queue();
    if harm.is_empty() || !is_slow || has_other_cause || longest < LONG_PROMPT_TOKENS {
        return RuleOutcome::Absent;
    }
    let stalled = window.max(StepSignal::Stalled).unwrap_or(0.0);
    let in_flight = window.get(WindowMeasure::InFlight).unwrap_or(0.0);
    let has_many_stalled = stalled >= 3.0 && stalled >= 0.5 * in_flight;
    let measures = [
        WindowMeasure::GapP99,
        WindowMeasure::EngineInterToken,
        WindowMeasure::KvUsageP90,
        WindowMeasure::Waiting,
    ];
    let signals = 1 + harm.len() + usize::from(has_many_stalled);
    let rule_match = RuleMatch::new(signals, evaluation.evidence_for_all(&measures));
    let longest = format!("The longest prompt had about {longest:.0} tokens.");
    RuleOutcome::Present(rule_match.remedy(Some(longest)))
}

fn judge_prefill_starvation(evaluation: &Evaluation<'_>) -> RuleOutcome {
    let window = evaluation.short_window();
    let usage = window.quantile(StepSignal::KvUsage, 0.9);
    let has_free_blocks = usage.is_some_and(|usage| usage < FREE_CACHE_USAGE);
    let queue = window.get(WindowMeasure::QueueTime);
    let ttft = window.get(WindowMeasure::EngineTtft).or(window.get(WindowMeasure::Ttft));
    // If the TTFT is unknown, the time in the queue alone decides.
    let is_mostly_queue_time = match (queue, ttft) {
        (Some(queue), Some(ttft)) => queue >= 0.5 * ttft,
        (queue, _) => queue.is_some_and(|queue| queue >= 0.5),
    };
    let harm = evaluation.slow_start_evidence();
    if !has_free_blocks || !evaluation.has_queue() || !is_mostly_queue_time || harm.is_empty() {
        return RuleOutcome::Absent;
    }
    let measures = [
        WindowMeasure::QueueTime,
        WindowMeasure::Waiting,
        WindowMeasure::Running,
        WindowMeasure::KvUsageP90,
        WindowMeasure::EngineInterToken,
    ];
    let max_running = window.max(StepSignal::Running).unwrap_or(0.0);
    let is_at_limit = window.fraction_at_least(StepSignal::Running, max_running - 0.5) >= 0.8;
    let cause = if is_at_limit {
        "the batch is at its limit (--max-num-seqs)"
    } else {
        "prompts use up the tokens of a step (--max-num-batched-tokens)"
    };
    let evidence = [evaluation.evidence_for_all(&measures), harm.clone()].concat();
    RuleOutcome::Present(RuleMatch::new(1 + harm.len(), evidence).because(cause))
}
