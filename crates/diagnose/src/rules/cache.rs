//! The KV cache: too small for what runs, too small for what waits, and not found again.

use super::super::case::{Case, Found, Judgement};
use super::super::measure::Measure;
use super::super::step::Signal;
use super::super::verdict::Severity;
use super::Rule;
use std::time::Duration;
use tokenweir_core::dialect::Load;

/// A cache that is as full as this has no room for the next request.
const FULL: f64 = 0.88;
/// One that never was fuller than this has.
const ROOMY: f64 = 0.80;
/// Preemptions in a second that are more than an accident.
const PREEMPTIONS: f64 = 0.02;
/// As a share of requests.
const PREEMPTED: f64 = 0.01;
/// A share with which the work done twice is harm in itself.
const MUCH_PREEMPTED: f64 = 0.05;
/// Share of the blocks that a safe batch fills on the whole: lengths differ.
const SAFE_FILL: f64 = 0.9;

pub(super) const THRASHING: Rule = Rule {
    name: "kv_thrashing",
    severity: Severity::Critical,
    meaning: "The KV cache is too small for the batch: sequences are thrown out and computed again.",
    remedy: "Lower --max-num-seqs or --max-model-len, store KV in fp8 (--kv-cache-dtype), or send \
             long prompts to a replica of their own.",
    disproof: "Preemptions stop growing while the times between tokens stay as they are.",
    explained_by: &[],
    needs: &[Signal::KvUsage, Signal::Preemptions, Signal::Running],
    judge: thrashing,
};

pub(super) const BACKLOG: Rule = Rule {
    name: "kv_backlog",
    severity: Severity::Warning,
    meaning: "The KV cache is full and nothing is thrown out: new requests wait until others end.",
    remedy: "Add a replica, store KV in fp8 (--kv-cache-dtype), give vLLM more of the GPU's memory \
             (--gpu-memory-utilization), or cap the length of answers.",
    disproof: "The queue drains while KV usage stays where it is.",
    explained_by: &["kv_thrashing"],
    needs: &[Signal::KvUsage, Signal::Waiting, Signal::Running],
    judge: backlog,
};

pub(super) const PREFIX_MISSES: Rule = Rule {
    name: "prefix_cache_misses",
    severity: Severity::Warning,
    meaning: "Prompts share beginnings, and the replica computes them again all the same.",
    remedy: "Route by prefix (routing.policy: kv_aware or prefix_affinity), keep what changes, such \
             as the time, at the end of system prompts, or give the cache more room.",
    disproof: "The hit ratio stays low on a replica that has had the same prompts for ten minutes \
               with a cache that is not full.",
    explained_by: &["kv_thrashing"],
    needs: &[Signal::PrefixQueries, Signal::PrefixHits, Signal::AskedTokens],
    judge: prefix_misses,
};

fn thrashing(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let preemptions = window.sum(Signal::Preemptions).unwrap_or(0.0);
    let rate = window.get(Measure::PreemptionRate).unwrap_or(0.0);
    let share = window.get(Measure::PreemptedShare);
    let has_room = window.max(Signal::KvUsage).is_none_or(|most| most < ROOMY);
    let is_full = window.quantile(Signal::KvUsage, 0.9).is_some_and(|usage| usage >= FULL);
    let is_rare = share.is_some_and(|share| share < PREEMPTED);
    if has_room || !is_full || preemptions < 2.0 || rate < PREEMPTIONS || is_rare {
        return Judgement::Absent;
    }
    let mut harm = [case.slow_tokens(), case.slow_start()].concat();
    let is_much = share.is_none_or(|share| share >= MUCH_PREEMPTED);
    if harm.is_empty() && !is_much {
        return Judgement::Absent;
    }
    let signals = 1 + usize::from(is_much) + harm.len() + usize::from(case.queues());
    let mut evidence = case.evidences(&[
        Measure::KvUsageP90,
        Measure::PreemptionRate,
        Measure::PreemptedShare,
        Measure::Running,
    ]);
    evidence.append(&mut harm);
    Judgement::Present(Found::new(signals, evidence).remedy(smaller_batch(case)))
}

/// What the batch should be, if the lengths of sequences and the size of the cache are known.
fn smaller_batch(case: &Case<'_>) -> Option<String> {
    let window = case.main();
    let prompt = window.ratio(Signal::PromptTokens, Signal::FirstTokens, 5.0)?;
    let output = window.ratio(Signal::GenerationTokens, Signal::Queued, 5.0)?;
    let safe = safe_max_num_seqs(case.history.page()?, prompt + output)?;
    let running = window.max(Signal::Running)?;
    (f64::from(safe) < running).then(|| {
        format!(
            "Start vLLM with --max-num-seqs {safe}: sequences are {:.0} tokens long on the whole, \
             and up to {running:.0} ran at once.",
            prompt + output
        )
    })
}

/// Sequences of this mean final length, in tokens, that fit into a replica's KV cache at the same
/// time: 0.9 × blocks ÷ ⌈length ÷ block size⌉. `None`: the page does not tell the size.
pub fn safe_max_num_seqs(page: &Load, mean_tokens: f64) -> Option<u32> {
    let block = page.block_size.filter(|size| *size >= 1.0).unwrap_or(1.0);
    let blocks = page.capacity()? as f64 / block;
    let each = (mean_tokens / block).ceil().max(1.0);
    Some((SAFE_FILL * blocks / each).floor().max(1.0) as u32)
}

fn backlog(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let is_full = window.quantile(Signal::KvUsage, 0.5).is_some_and(|usage| usage >= ROOMY)
        && window.quantile(Signal::KvUsage, 0.9).is_some_and(|usage| usage >= FULL);
    let (waiting, running) = (window.get(Measure::Waiting), window.get(Measure::Running));
    let queued = waiting
        .zip(running)
        .map_or(0.0, |(waiting, running)| waiting / (waiting + running).max(1.0));
    let harm = case.slow_start();
    if !is_full || !case.queues() || queued < 0.2 || harm.is_empty() {
        return Judgement::Absent;
    }
    let measures = [Measure::KvUsageP90, Measure::Waiting, Measure::Running, Measure::QueueTime];
    let evidence = [case.evidences(&measures), harm.clone()].concat();
    Judgement::Present(Found::new(1 + harm.len(), evidence))
}

fn prefix_misses(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let Some(usual) = case.usual(Measure::HitRatio) else {
        return Judgement::Unknown("its usual hit ratio: it takes five minutes with traffic");
    };
    let (Some(ratio), Some(reusable)) =
        (window.get(Measure::HitRatio), window.get(Measure::Reusable))
    else {
        return Judgement::Absent;
    };
    let has_fallen = usual.median >= 0.2 && ratio <= 0.5 * usual.median;
    // Otherwise the prompts have changed, not the cache.
    let is_shared = reusable >= 0.5;
    let is_slower = [Measure::EngineTtft, Measure::Ttft].map(|it| case.has_risen(it, 1.3));
    if !has_fallen || !is_shared || is_slower == [false, false] {
        return Judgement::Absent;
    }
    let here = window.ratio(Signal::ReusableHereTokens, Signal::ReusableTokens, 1.0);
    let cause = if case.history.is_young(Duration::from_mins(10)) {
        return Judgement::Absent;
    } else if window.quantile(Signal::KvUsage, 0.9).is_some_and(|usage| usage >= FULL) {
        "evicted: requests hold the whole cache"
    } else if here.is_some_and(|here| here < 0.5) {
        "routed past it: other replicas have these beginnings"
    } else {
        "lost: the replica was believed to have these beginnings"
    };
    let signals = 1 + is_slower.iter().filter(|is_slower| **is_slower).count();
    let measures = [
        Measure::HitRatio,
        Measure::Reusable,
        Measure::EngineTtft,
        Measure::Ttft,
        Measure::KvUsageP90,
    ];
    Judgement::Present(Found::new(signals, case.evidences(&measures)).because(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_safe_batch_fills_nine_tenths_of_the_blocks() {
        let page = Load { block_size: Some(16.0), blocks: Some(1_000.0), ..Load::default() };
        // 161 tokens take 11 blocks.
        assert_eq!(safe_max_num_seqs(&page, 161.0), Some(81));
        assert_eq!(safe_max_num_seqs(&page, 1e9), Some(1));
        assert_eq!(safe_max_num_seqs(&Load::default(), 161.0), None);
        let told = Load { kv_tokens: Some(1_000.0), ..Load::default() };
        assert_eq!(safe_max_num_seqs(&told, 100.0), Some(9));
    }
}
