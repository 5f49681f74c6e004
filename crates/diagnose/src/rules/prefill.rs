//! Rules about prefill and decode. Both share the batch of the engine, so prefill can delay decode, and
//! decode can delay prefill.

use super::cache::{FREE_CACHE_USAGE, FULL_CACHE_USAGE, evicts_conversations};
use crate::history::{HistoryStep, LONG_PROMPT_TOKENS};
use crate::rule::prelude::*;

/// Minimum number of tokens of a long prompt if the mean prompt is much shorter.
const LONGER_PROMPT_TOKENS: f64 = 1_000.0;
/// Minimum ratio of the length of a prompt to the mean length, for a prompt that counts as long with fewer than
/// [`LONG_PROMPT_TOKENS`] tokens.
const LONGER_PROMPT_FACTOR: f64 = 4.0;
/// Mean number of requests in prefill below which the token budget of the scheduler steps
/// (`--max-num-batched-tokens`) is not used up.
const MAX_IDLE_PREFILL: f64 = 0.7;
/// Mean number of requests in prefill from which almost every scheduler step contains prefill.
const MIN_BUSY_PREFILL: f64 = 0.9;
/// The value of [`MAX_IDLE_PREFILL`] for a small batch, in which each request is a large share.
const MAX_IDLE_PREFILL_OF_SMALL_BATCH: f64 = 0.35;
/// Share of the maximum batch by which a full batch may be smaller than the maximum, because some sequences may
/// just have ended. One missing request is always allowed, unless the batch is small.
const CEILING_SLACK: f64 = 0.1;
/// Number of running requests below which a batch is small.
const SMALL_BATCH: f64 = 8.0;
/// Minimum number of requests that wait in the engine during a burst. Fewer can wait by chance.
const MIN_BURST: f64 = 5.0;
/// Share of the maximum number of running requests below which the engine has free sequence slots between
/// bursts.
const MAX_RUNNING_BETWEEN_BURSTS: f64 = 0.7;
/// Minimum number of streams with structured output, and of streams without, for a comparison.
const MIN_STRUCTURED: f64 = 3.0;
/// Minimum ratio of the running requests of the peers to those of an engine with a lower limit than its peers.
const BELOW_PEERS_FACTOR: f64 = 2.0;
const MIN_STEPS_BELOW: usize = 3;
/// Minimum mean time in the queue of the engine, in seconds, for a burst that harms clients.
const BURST_QUEUE_SECONDS: f64 = 1.0;

pub(super) const DECODE_STARVATION: DiagnosisRule = DiagnosisRule {
    name: "decode_starvation",
    severity: "critical",
    lowest: VerdictSeverity::Critical,
    meaning: "The prefill of long prompts delays the streams of all other requests on the backend.",
    evidence: "In the last minute the p99 between outputs is ≥ 0.5 s, or ≥ 0.2 s and four times \
               usual. The longest prompt has 8,000 tokens or more, or 1,000 and four times the mean. The \
               engine has no queue and at most one preemption. The p90 of its KV usage is < 88 %.",
    excluded: "`shared_backend`, `kv_thrashing` holds",
    remedy: "Lower --max-num-batched-tokens, limit concurrent long prompts \
             (--max-num-partial-prefills, --long-prefill-token-threshold), or give them a model \
             name with backends of its own (models).",
    disproof: "Streams pause while no prompt is longer than usual.",
    needs: &[StepSignal::GapP99, StepSignal::KvUsage, StepSignal::Waiting],
    judge: |evaluation| Ok(judge_decode_starvation(evaluation)),
    ..DiagnosisRule::ENGINE
};

pub(super) const PREFILL_STARVATION: DiagnosisRule = DiagnosisRule {
    name: "prefill_starvation",
    meaning: "Requests wait for their prefill although the KV cache has free blocks.",
    evidence: "Two or more requests wait in the engine in 80 % of the samples of 45 s; or the mean \
               queue time is ≥ 1 s, and a queue of five requests has become empty twice in five \
               minutes. The queue time is at least half of the TTFT. The p90 of the KV usage is < \
               80 %. First tokens are late. The cause is `--max-num-seqs` if the batch stays at \
               its maximum and on average fewer than 0.7 requests (0.35 in a batch below eight) \
               are in prefill. The cause is `--max-num-batched-tokens` if the batch is smaller and \
               0.9 or more are. It is also `--max-num-seqs` if the engine stays at its maximum while requests wait in \
               all samples of 20 s, and each peer runs twice as many without a queue. Or half of the waiting requests are deferred, in half of the samples.",
    excluded: "`shared_backend`, `kv_thrashing`, `kv_backlog` or `slow_engine` holds, or the engine evicts \
               conversations in progress",
    remedy: "Add backends, or raise the limit that the cause names as far as GPU memory and the \
             times between tokens allow it.",
    disproof: "Time in the engine's queue falls while requests still start late.",
    needs: &[StepSignal::Waiting, StepSignal::KvUsage, StepSignal::Queued],
    judge: |evaluation| Ok(judge_prefill_starvation(evaluation)),
    ..DiagnosisRule::ENGINE
};

fn judge_decode_starvation(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.minute;
    let harm = evaluation.slow_inter_token_evidence();
    let gap = window.get(WindowMeasure::GapP99).unwrap_or(0.0);
    let is_slow = gap >= 0.5 || (gap >= 0.2 && evaluation.has_risen(WindowMeasure::GapP99, 4.0));
    let usage = window.quantile(StepSignal::KvUsage, 0.9);
    let is_full = usage.is_none_or(|usage| usage >= FULL_CACHE_USAGE);
    let is_preempting = window.total(StepSignal::Preemptions) >= 2.0;
    let longest = window.max(StepSignal::LongestPrompt).unwrap_or(0.0);
    let is_over = window
        .latest(StepSignal::GapP99)
        .is_some_and(|gap| gap < 0.2);
    let has_other_cause = is_full || is_preempting || evaluation.has_queue() || is_over;
    let mean = window.ratio(StepSignal::PromptTokens, StepSignal::FirstTokens, 1.0);
    let is_longer = mean.is_some_and(|mean| longest >= LONGER_PROMPT_FACTOR * mean);
    let has_long_prompt =
        longest >= LONG_PROMPT_TOKENS || longest >= LONGER_PROMPT_TOKENS && is_longer;
    if harm.is_empty() || !is_slow || has_other_cause || !has_long_prompt {
        return None;
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
    let longest = format!("The longest prompt had about {longest:.0} tokens.");
    Some(evaluation.found(signals, &measures).remedy(longest))
}

/// Whether requests spend at least half of their TTFT in the queue of the engine. If the TTFT is unknown, the
/// time in the queue alone decides.
fn is_mostly_queue_time(window: &StepWindow<'_>) -> bool {
    let Some(queue) = window.get(WindowMeasure::QueueTime) else {
        return false;
    };
    let ttft = window
        .get(WindowMeasure::EngineTtft)
        .or(window.get(WindowMeasure::Ttft));
    ttft.map_or(queue >= 0.5, |ttft| queue >= 0.5 * ttft)
}

fn judge_prefill_starvation(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.minute;
    let usage = window.quantile(StepSignal::KvUsage, 0.9);
    let has_free_blocks = usage.is_some_and(|usage| usage < FREE_CACHE_USAGE);
    let harm = evaluation.slow_start_evidence();
    if has_free_blocks && !harm.is_empty() && is_deferred(&window) {
        return Some(deferred(evaluation, harm));
    }
    if !harm.is_empty() && waits_for_grammar(&window) {
        let found = RuleMatch::new(1 + harm.len(), harm).because(
            "only requests with structured output wait: the engine compiles their grammars \
             before it takes them",
        );
        return Some(found.at(Origin::Requests).remedy(
            "Reuse schemas, so that the engine finds their grammars in its cache, simplify them, \
             or use another backend of structured output (--structured-outputs-config).",
        ));
    }
    let below_peers = limit_below_peers(evaluation);
    let is_burst = !evaluation.has_queue() && below_peers.is_none() && is_burst(evaluation);
    let has_queue = evaluation.has_queue() || is_burst || below_peers.is_some();
    let is_queued = has_queue && is_mostly_queue_time(&window);
    if !has_free_blocks || !is_queued || harm.is_empty() || evicts_conversations(evaluation) {
        return None;
    }
    let measures = [
        WindowMeasure::QueueTime,
        WindowMeasure::Waiting,
        WindowMeasure::Running,
        WindowMeasure::Prefilling,
        WindowMeasure::KvUsageP90,
        WindowMeasure::EngineInterToken,
    ];
    let signals = 1 + harm.len();
    let found = evaluation.found(signals, &measures).with(harm);
    if let Some(cause) = below_peers {
        let found = found.because(cause).at(Origin::Engine);
        return Some(RuleMatch {
            signals: signals + 1,
            ..found.remedy(
                "Compare the start flags of the engine with those of its peers, first \
                 --max-num-seqs.",
            )
        });
    }
    let limit = if is_burst {
        Some(QueueLimit::Bursts)
    } else {
        scheduler_limit(evaluation, &window)
    };
    // Without a proven scheduler limit, only the queue and late first tokens show the condition, so the
    // confidence is at most medium.
    let is_proven = matches!(limit, Some(QueueLimit::Sequences | QueueLimit::Tokens));
    Some(RuleMatch {
        signals: if is_proven { signals } else { signals.min(2) },
        ..because_of_limit(found, limit)
    })
}

/// Whether only requests with structured output wait.
fn waits_for_grammar(window: &StepWindow<'_>) -> bool {
    let mean = |seconds, outputs| window.ratio(seconds, outputs, MIN_STRUCTURED);
    let structured = mean(StepSignal::StructuredSeconds, StepSignal::StructuredOutputs);
    let plain = mean(StepSignal::PlainSeconds, StepSignal::PlainOutputs);
    let both = structured.zip(plain);
    both.is_some_and(|(structured, plain)| structured >= 1.0 && structured >= 3.0 * plain)
}

/// The cause if the engine has a lower limit than its peers. It then runs only a few requests while others
/// wait, and its peers run far more without a queue.
fn limit_below_peers(evaluation: &Evaluation<'_>) -> Option<String> {
    let recent = evaluation.recent;
    let is_waiting = recent.len() >= MIN_STEPS_BELOW
        && recent.fraction_at_least(StepSignal::Waiting, 1.0) >= 1.0
        && recent.mean(StepSignal::Waiting)? >= 2.0;
    let most = recent.max(StepSignal::Running)?;
    let is_ceiling = recent.fraction_at_least(StepSignal::Running, most) >= 0.8;
    let peers = windows(evaluation.peers(), RECENT);
    let running: Vec<f64> = peers
        .iter()
        .filter(|peer| {
            peer.mean(StepSignal::Waiting)
                .is_some_and(|waiting| waiting < 0.5)
        })
        .filter_map(|peer| peer.max(StepSignal::Running))
        .collect();
    let least = running.iter().copied().reduce(f64::min)?;
    let is_below = running.len() == peers.len() && least >= BELOW_PEERS_FACTOR * most.max(1.0);
    (is_waiting && is_ceiling && is_below).then(|| {
        format!(
            "it runs at most {most:.0} requests at once and others wait there, while its peers \
             run {least:.0} without a queue: its --max-num-seqs is lower"
        )
    })
}

/// Whether most of the waiting requests wait for a LoRA adapter or a KV transfer.
fn is_deferred(window: &StepWindow<'_>) -> bool {
    let deferred = window.mean(StepSignal::Deferred).unwrap_or(0.0);
    let waiting = window.mean(StepSignal::Waiting).unwrap_or(0.0);
    window.fraction_at_least(StepSignal::Deferred, 1.0) >= 0.5 && deferred >= 0.5 * waiting
}

/// The match for requests that wait for a LoRA adapter or a KV transfer.
fn deferred(evaluation: &Evaluation<'_>, harm: Vec<Evidence>) -> RuleMatch {
    let measures = [WindowMeasure::Waiting, WindowMeasure::Running];
    let found = evaluation.found(1 + harm.len(), &measures).with(harm);
    found
        .because(
            "requests wait for a slot of their LoRA adapter (--max-loras), for a KV transfer, or \
             for the grammar of structured output, while the batch has room",
        )
        .remedy("Raise --max-loras, or give rarely used adapters a backend of their own.")
}

/// Whether requests come in bursts: they wait long in the queue of the engine, but at least twice in the last
/// five minutes the queue was empty and sequence slots were free. A batch that stays full with an empty queue
/// is no burst. It is at its limit, and further requests wait in the gateway.
fn is_burst(evaluation: &Evaluation<'_>) -> bool {
    let window = evaluation.long;
    let running = |step: &HistoryStep| step.get(StepSignal::Running);
    let most_running = window.max(StepSignal::Running).unwrap_or(0.0);
    let free_slots_below = MAX_RUNNING_BETWEEN_BURSTS * most_running;
    let mut is_queue = false;
    let mut ends = 0;
    for step in window.steps() {
        let (Some(waiting), Some(running)) = (step.get(StepSignal::Waiting), running(step)) else {
            continue;
        };
        if waiting >= MIN_BURST {
            is_queue = true;
        } else if waiting < 0.5 && running < free_slots_below && std::mem::take(&mut is_queue) {
            ends += 1;
        }
    }
    let queue = evaluation.minute.get(WindowMeasure::QueueTime);
    ends >= 2 && queue.is_some_and(|queue| queue >= BURST_QUEUE_SECONDS)
}

/// Adds the cause of a queue in an engine that has free KV blocks, and the remedy. `limit`: the scheduler limit
/// that causes the queue, or `None` if it is unknown.
fn because_of_limit(found: RuleMatch, limit: Option<QueueLimit>) -> RuleMatch {
    match limit {
        Some(QueueLimit::Bursts) => found
            .because("requests come in bursts: the queue is empty between them")
            .remedy(
                "Spread the requests of batch jobs over time, or give them a lower class \
                 (admission.classes).",
            ),
        Some(QueueLimit::Sequences) => found
            .because("the batch is at its limit (--max-num-seqs)")
            .remedy("Raise --max-num-seqs: the KV cache has room for more sequences."),
        Some(QueueLimit::Tokens) => found
            .because("prompts use up the tokens of each step (--max-num-batched-tokens)")
            .remedy(
                "Raise --max-num-batched-tokens if the engine computes prompts faster in larger \
                 pieces; otherwise its prefill speed is the limit.",
            ),
        None => found
            .because(
                "cannot tell which: the batch limit (--max-num-seqs) or the tokens of a step \
                 (--max-num-batched-tokens)",
            )
            .remedy(
                "Compare the running requests with --max-num-seqs: if they are equal, raise it.",
            ),
    }
}

/// Why requests wait while KV blocks are free.
#[derive(Clone, Copy)]
enum QueueLimit {
    /// The requests come in bursts.
    Bursts,
    /// `--max-num-seqs` of vLLM's scheduler.
    Sequences,
    /// `--max-num-batched-tokens` of vLLM's scheduler.
    Tokens,
}

/// The scheduler limit that the measures prove. `None`: they prove neither limit.
///
/// A request that waits although blocks are free was left out of a scheduler step for one of two reasons: the
/// batch had `--max-num-seqs` sequences, or the token budget of the step was used up. Only prefill uses up the
/// token budget. So in the second case a prompt is in prefill in every step, and the mean number of requests in
/// prefill is at least one. A lower mean therefore proves the first case. In the first case a new sequence
/// replaces each sequence that ends, so the number of running requests stays at its maximum. A full batch with
/// much prefill proves neither case: a step with a prompt is longer than a step without, so most of the time
/// can be prefill although few steps have a prompt.
fn scheduler_limit(evaluation: &Evaluation<'_>, window: &StepWindow<'_>) -> Option<QueueLimit> {
    let in_prefill = window.get(WindowMeasure::Prefilling)?;
    // Only steps with waiting requests show whether a limit was reached.
    let while_waiting = |step: &HistoryStep| {
        step.get(StepSignal::Waiting)
            .filter(|waiting| *waiting >= 1.0)?;
        step.get(StepSignal::Running)
    };
    let max_running = window.max_of(while_waiting)?;
    let is_small = max_running < SMALL_BATCH;
    let slack = if is_small {
        0.0
    } else {
        (CEILING_SLACK * max_running).max(1.0)
    };
    let is_at_ceiling = window.step_fraction_at_least(while_waiting, max_running - slack) >= 0.8;
    // The batch limit is not reached if the engine has clearly run more sequences at once before. A batch limit
    // of one sequence is implausible.
    let most_running = f64::from(evaluation.history.most_running());
    let has_run_more = max_running < 2.0 || max_running < (1.0 - CEILING_SLACK) * most_running;
    let max_idle = if is_small {
        MAX_IDLE_PREFILL_OF_SMALL_BATCH
    } else {
        MAX_IDLE_PREFILL
    };
    if in_prefill < max_idle {
        (is_at_ceiling && !has_run_more).then_some(QueueLimit::Sequences)
    } else if in_prefill >= MIN_BUSY_PREFILL && (!is_at_ceiling || has_run_more) {
        Some(QueueLimit::Tokens)
    } else {
        None
    }
}
