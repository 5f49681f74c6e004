//! Rules about the KV cache: the cache is too small for the running batch, the cache is full while requests
//! wait, or prefixes that were in the cache are computed again.

use crate::rule::prelude::*;
use std::time::Duration;
use tokenweir_engine::dialect::EngineLoad;

/// KV usage from which the KV cache counts as full, because it has too few free blocks for another request.
pub(super) const FULL_CACHE_USAGE: f64 = 0.88;
/// Below this KV usage, the KV cache has free blocks for another request.
pub(super) const FREE_CACHE_USAGE: f64 = 0.80;
/// Minimum share of the requests in the engine that wait, for the rule `kv_backlog`. [`MIN_WAITING`] waiting
/// requests are also enough.
const MIN_WAITING_SHARE: f64 = 0.2;
/// Number of waiting requests that is enough for the rule `kv_backlog`, whatever their share.
const MIN_WAITING: f64 = 8.0;
/// Minimum number of preemptions per second for the rule `kv_thrashing`.
const MIN_PREEMPTIONS_PER_SECOND: f64 = 0.02;
/// Minimum number of preemptions per request for the rule `kv_thrashing`.
const MIN_PREEMPTED_RATIO: f64 = 0.01;
/// Number of preemptions per request from which preemptions alone count as harm to clients.
const HARMFUL_PREEMPTED_RATIO: f64 = 0.05;
/// Share of the blocks of the KV cache that a batch of a safe size fills on average. The other blocks are a
/// margin for sequences that are longer than the mean.
const SAFE_BLOCK_FILL_RATIO: f64 = 0.9;
/// Minimum share of the prompt tokens that earlier prompts also contained, for evicted conversations.
const MIN_KNOWN_SHARE: f64 = 0.5;
/// Maximum ratio of cache hits to the tokens that earlier prompts also contained.
const MAX_RETAINED_SHARE: f64 = 0.5;
/// Maximum share of these tokens that the gateway predicts in some cache. If it predicts more, the request went
/// to another backend, or the cache lost the tokens.
const MAX_PREDICTED_SHARE: f64 = 0.6;
/// Time after a restart in which prefixes are computed again because of the restart.
const RESTART_SPAN: Duration = Duration::from_mins(10);

pub(super) const THRASHING: DiagnosisRule = DiagnosisRule {
    name: "kv_thrashing",
    severity: "critical",
    lowest: VerdictSeverity::Critical,
    meaning: "The KV cache is too small for the batch: sequences are preempted and computed again.",
    evidence: "In the last minute the p90 of the KV usage is ≥ 88 %. The engine has at least two \
               preemptions, and at least 0.02 per second and 0.01 per request. Tokens or first tokens are late, \
               or the engine has 0.05 preemptions per request. In the last 20 s the KV usage \
               reached 80 %.",
    excluded: "`shared_backend` holds",
    remedy: "Lower --max-num-seqs or --max-model-len, store KV in fp8 (--kv-cache-dtype), or give \
             long prompts a model name with backends of its own (models).",
    disproof: "The number of preemptions stops growing while the times between tokens do not \
               change.",
    pages: true,
    needs: &[
        StepSignal::KvUsage,
        StepSignal::Preemptions,
        StepSignal::Running,
    ],
    judge: |evaluation| Ok(judge_thrashing(evaluation)),
    ..DiagnosisRule::ENGINE
};

pub(super) const BACKLOG: DiagnosisRule = DiagnosisRule {
    name: "kv_backlog",
    meaning: "The KV cache is full without preemptions: new requests wait until others end.",
    evidence: "In the last minute the p90 of the KV usage is ≥ 88 %, and its median ≥ 80 %. Two or \
               more requests wait in the engine in 80 % of the samples of 45 s. On average eight \
               or more requests wait, or 20 % of those in the engine. First tokens are late.",
    excluded: "`shared_backend`, `kv_thrashing` holds",
    remedy: "Add a backend, store KV in fp8 (--kv-cache-dtype), give vLLM more of the GPU's memory \
             (--gpu-memory-utilization), or limit the length of answers.",
    disproof: "The queue drains while KV usage does not change.",
    pages: true,
    needs: &[
        StepSignal::KvUsage,
        StepSignal::Waiting,
        StepSignal::Running,
    ],
    judge: |evaluation| Ok(judge_backlog(evaluation)),
    ..DiagnosisRule::ENGINE
};

pub(super) const PREFIX_MISSES: DiagnosisRule = DiagnosisRule {
    name: "prefix_cache_misses",
    meaning: "Prompts share prefixes, but the backend computes these prefixes again.",
    evidence: "The prefix hit ratio of the last minute is at most half of usual, which is ≥ 20 %. \
               The gateway predicted ≥ 50 % of the prompt tokens to be in the cache of a backend. \
               The mean TTFT is 1.3 times usual. The cause says whether the prefixes were evicted, \
               routed to other backends or lost. Or conversations go on that the caches no longer have: \
               ≥ 50 % of the prompt tokens were in prompts of the last minute, at most half of these \
               are hits, the gateway predicted at most 60 % of them in a cache, and first tokens are late.",
    excluded: "`shared_backend`, `kv_thrashing` holds, or the backend restarted in the last ten minutes",
    remedy: "Route by prefix (routing.policy: kv_aware or prefix_affinity), move changing parts, \
             such as the time, to the end of system prompts, or enlarge the KV cache.",
    disproof: "The prompts that the backend receives begin with different texts, so they share no prefix.",
    needs: &[
        StepSignal::PrefixQueries,
        StepSignal::PrefixHits,
        StepSignal::GatewayPromptTokens,
    ],
    judge: judge_prefix_misses,
    ..DiagnosisRule::ENGINE
};

fn judge_thrashing(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.minute;
    let preemptions = window.total(StepSignal::Preemptions);
    let rate = window.get(WindowMeasure::PreemptionRate).unwrap_or(0.0);
    let share = window.get(WindowMeasure::PreemptionsPerRequest);
    let recent = evaluation.recent;
    let had_capacity = recent
        .max(StepSignal::KvUsage)
        .is_none_or(|usage| usage < FREE_CACHE_USAGE);
    let usage = window.quantile(StepSignal::KvUsage, 0.9);
    let is_full = usage.is_some_and(|usage| usage >= FULL_CACHE_USAGE);
    let is_rare = share.is_some_and(|share| share < MIN_PREEMPTED_RATIO);
    let is_preempting = preemptions >= 2.0 && rate >= MIN_PREEMPTIONS_PER_SECOND;
    if had_capacity || !is_full || !is_preempting || is_rare {
        return None;
    }
    let mut harm = evaluation.slow_inter_token_evidence();
    harm.extend(evaluation.slow_start_evidence());
    let is_harmful = share.is_none_or(|share| share >= HARMFUL_PREEMPTED_RATIO);
    if harm.is_empty() && !is_harmful {
        return None;
    }
    let signals = 1 + usize::from(is_harmful) + harm.len() + usize::from(evaluation.has_queue());
    let measures = [
        WindowMeasure::KvUsageP90,
        WindowMeasure::PreemptionRate,
        WindowMeasure::PreemptionsPerRequest,
        WindowMeasure::Running,
    ];
    let (recommended, remedy) = batch_size_remedy(evaluation).unzip();
    Some(RuleMatch {
        remedy,
        recommended,
        ..evaluation.found(signals, &measures).with(harm)
    })
}

/// A safe value of `--max-num-seqs`, and the advice to set it. `None` if the lengths of sequences or the
/// size of the KV cache are unknown, or if no more than this number of sequences ran at once.
fn batch_size_remedy(evaluation: &Evaluation<'_>) -> Option<(u32, String)> {
    let window = evaluation.long;
    let prompt = window.ratio(StepSignal::PromptTokens, StepSignal::FirstTokens, 5.0)?;
    let output = window.ratio(StepSignal::GenerationTokens, StepSignal::Queued, 5.0)?;
    let safe = safe_max_num_seqs(evaluation.history.last_known_load()?, prompt + output)?;
    let running = window.max(StepSignal::Running)?;
    (f64::from(safe) < running).then(|| {
        let safe = rounded_down(safe);
        let advice = format!(
            "Start vLLM with --max-num-seqs {safe}: sequences have about {} tokens, and up to \
             {running:.0} ran at once.",
            rounded_down((prompt + output) as u32)
        );
        (safe, advice)
    })
}

/// Rounds a number down by at most an eighth of its value, because the mean sequence length from which it is
/// computed is no more precise.
fn rounded_down(number: u32) -> u32 {
    let step = (number.next_power_of_two() / 16).max(1);
    number - number % step
}

/// Number of sequences that fit into the KV cache of a backend at once: 0.9 × blocks ÷
/// ⌈`mean_tokens` ÷ block size⌉. `mean_tokens` is the mean length of a sequence at its end. `None`:
/// the page does not report the size of the cache.
pub fn safe_max_num_seqs(page: &EngineLoad, mean_tokens: f64) -> Option<u32> {
    let block = page.block_size.filter(|size| *size >= 1.0).unwrap_or(1.0);
    let blocks = page.capacity()? as f64 / block;
    let blocks_per_sequence = (mean_tokens / block).ceil().max(1.0);
    Some(
        (SAFE_BLOCK_FILL_RATIO * blocks / blocks_per_sequence)
            .floor()
            .max(1.0) as u32,
    )
}

fn judge_backlog(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.minute;
    let median = window.quantile(StepSignal::KvUsage, 0.5);
    let p90 = window.quantile(StepSignal::KvUsage, 0.9);
    let is_full = median.is_some_and(|usage| usage >= FREE_CACHE_USAGE)
        && p90.is_some_and(|usage| usage >= FULL_CACHE_USAGE);
    let waiting = window.get(WindowMeasure::Waiting);
    let running = window.get(WindowMeasure::Running);
    let is_long_queue = waiting.zip(running).is_some_and(|(waiting, running)| {
        waiting >= MIN_WAITING || waiting >= MIN_WAITING_SHARE * (waiting + running).max(1.0)
    });
    let harm = evaluation.slow_start_evidence();
    if !is_full || !evaluation.has_queue() || !is_long_queue || harm.is_empty() {
        return None;
    }
    let measures = [
        WindowMeasure::KvUsageP90,
        WindowMeasure::Waiting,
        WindowMeasure::Running,
        WindowMeasure::QueueTime,
    ];
    Some(evaluation.found(1 + harm.len(), &measures).with(harm))
}

/// Whether clients continue conversations that the cache has evicted within a minute. No usual hit ratio is
/// needed, because an engine that evicts nothing still has the earlier prompt of a conversation. The prediction
/// shows that no other backend has it.
pub(super) fn evicts_conversations(evaluation: &Evaluation<'_>) -> bool {
    let window = evaluation.minute;
    let (Some(known), Some(hits), Some(predicted)) = (
        window.get(WindowMeasure::KnownPrompt),
        window.get(WindowMeasure::PrefixHitRatio),
        window.get(WindowMeasure::ReusablePrompt),
    ) else {
        return false;
    };
    known >= MIN_KNOWN_SHARE
        && hits <= MAX_RETAINED_SHARE * known
        && predicted <= MAX_PREDICTED_SHARE * known
        && !evaluation.history.has_restarted_within(RESTART_SPAN)
}

/// The match for evicted conversations. `None`: no conversation was evicted, or no client is harmed.
fn evicted_conversations(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let harm = evaluation.slow_start_evidence();
    if harm.is_empty() || !evicts_conversations(evaluation) {
        return None;
    }
    let measures = [
        WindowMeasure::KnownPrompt,
        WindowMeasure::PrefixHitRatio,
        WindowMeasure::ReusablePrompt,
    ];
    let found = evaluation.found(1 + harm.len(), &measures).with(harm);
    let found =
        found.because("evicted: more conversations are in progress than fit into the KV cache");
    Some(found.remedy(
        "Let new sessions wait until those in progress leave room (sessions.enabled: true), or \
         add backends.",
    ))
}

fn judge_prefix_misses(evaluation: &Evaluation<'_>) -> RuleResult {
    if let Some(found) = evicted_conversations(evaluation) {
        return Ok(Some(found));
    }
    let window = evaluation.minute;
    let Some(usual) = evaluation.baseline(WindowMeasure::PrefixHitRatio) else {
        return Err(vec![
            "its usual hit ratio, which is known after six minutes with traffic",
        ]);
    };
    let (Some(ratio), Some(reusable)) = (
        window.get(WindowMeasure::PrefixHitRatio),
        window.get(WindowMeasure::ReusablePrompt),
    ) else {
        return Ok(None);
    };
    let recent = evaluation.recent;
    let is_over = recent
        .ratio(StepSignal::PrefixHits, StepSignal::PrefixQueries, 1.0)
        .is_some_and(|ratio| ratio > 0.5 * usual.median);
    let has_fallen = usual.median >= 0.2 && ratio <= 0.5 * usual.median && !is_over;
    // If prompts share no prefixes, the hit ratio has fallen because prompts have changed.
    let is_shared = reusable >= 0.5;
    let is_slower = [WindowMeasure::EngineTtft, WindowMeasure::Ttft]
        .map(|measure| evaluation.has_risen(measure, 1.3));
    let slower = is_slower.map(usize::from).iter().sum::<usize>();
    let has_restarted = evaluation.history.has_restarted_within(RESTART_SPAN);
    if !has_fallen || !is_shared || slower == 0 || has_restarted {
        return Ok(None);
    }
    let measures = [
        WindowMeasure::PrefixHitRatio,
        WindowMeasure::ReusablePrompt,
        WindowMeasure::EngineTtft,
        WindowMeasure::Ttft,
        WindowMeasure::KvUsageP90,
    ];
    let found = evaluation.found(1 + slower, &measures);
    Ok(Some(found.because(prefix_miss_cause(&window))))
}

/// The cause of prefix misses in a window. Call it only if the rule `prefix_cache_misses` matches.
fn prefix_miss_cause(window: &StepWindow<'_>) -> &'static str {
    let reusable_here = window.ratio(
        StepSignal::ReusableHereTokens,
        StepSignal::ReusableTokens,
        1.0,
    );
    let usage = window.quantile(StepSignal::KvUsage, 0.9);
    if usage.is_some_and(|usage| usage >= FULL_CACHE_USAGE) {
        "evicted: requests occupy the whole cache"
    } else if reusable_here.is_some_and(|share| share < 0.5) {
        "routed to others: other backends have these prefixes in their caches"
    } else {
        "lost: these prefixes were predicted to be in the cache of this backend"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_batch_sizes_lose_at_most_an_eighth() {
        let rounded = [1, 7, 11, 17, 47, 100, 300].map(rounded_down);
        assert_eq!(rounded, [1, 7, 11, 16, 44, 96, 288]);
    }

    #[test]
    fn a_safe_batch_fills_nine_tenths_of_blocks() {
        let page = EngineLoad {
            block_size: Some(16.0),
            blocks: Some(1_000.0),
            ..EngineLoad::default()
        };
        // A sequence of 161 tokens occupies 11 blocks.
        assert_eq!(safe_max_num_seqs(&page, 161.0), Some(81));
        assert_eq!(safe_max_num_seqs(&page, 1e9), Some(1));
        assert_eq!(safe_max_num_seqs(&EngineLoad::default(), 161.0), None);
        let capacity_only = EngineLoad {
            kv_tokens: Some(1_000.0),
            ..EngineLoad::default()
        };
        assert_eq!(safe_max_num_seqs(&capacity_only, 100.0), Some(9));
    }
}
