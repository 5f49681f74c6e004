//! The rule about an engine that is far slower than its peers, which serve the same models, or far slower than
//! usual.

use super::{cache, gpus};
use crate::history::LONG_PROMPT_TOKENS;
use crate::rule::prelude::*;

/// Minimum ratio of the mean time between tokens of a slow engine to the median of its peers.
const SLOW_FACTOR: f64 = 3.0;
/// Minimum mean time between tokens, in seconds, that harms clients. It is about the speed at which people read
/// aloud.
const MIN_INTER_TOKEN_SECONDS: f64 = 0.1;
/// Minimum number of observed times between tokens.
const MIN_GAPS: f64 = 30.0;
/// The rule does not match if the batch of the engine is larger than `BATCH_FACTOR` times the mean number of
/// running requests of the peers, plus `BATCH_SURPLUS`. A smaller batch cannot explain why tokens take three
/// times as long as at the peers.
const BATCH_FACTOR: f64 = 4.0;
const BATCH_SURPLUS: f64 = 16.0;

/// For an engine that is slower than usual: the minimum ratio to the usual time between tokens, the minimum
/// difference in seconds, and the ratio from which a peer is slower than usual too.
const SLOWER_FACTOR: f64 = 2.0;
const MIN_SLOWER_SECONDS: f64 = 0.01;
const SLOWER_PEER_FACTOR: f64 = 1.5;
/// Multiples of the usual load above which the load explains slower tokens: first of the rate of requests, and
/// then of the running requests that slower tokens alone would cause.
const USUAL_LOAD_FACTOR: f64 = 1.5;
const LARGER_BATCH_FACTOR: f64 = 1.5;
/// Maximum ratio of a fallen share to its usual value, which must be at least [`MIN_USUAL_SHARE`].
const FALLEN_PART: f64 = 0.6;
const MIN_USUAL_SHARE: f64 = 0.1;

/// The cause of the verdict `slow_engine` if a GPU exporter reports a throttled GPU of the backend.
const THROTTLED: &str = "a GPU of the backend lowers its clock (gpu_throttled)";

pub(super) const SLOW_ENGINE: DiagnosisRule = DiagnosisRule {
    name: "slow_engine",
    meaning: "The engine is far slower than the engines of the other backends with the same models, or than before.",
    evidence: "The mean time between tokens of the last 20 s is ≥ 100 ms, and at least three times \
               the median of its peers in the last minute. Or it is twice as long as usual and 10 ms longer, while requests \
               are as frequent as usual and no more of them run than the slower tokens explain; critical if most peers \
               have the same.",
    excluded: "`shared_backend`, `kv_thrashing` or `decode_starvation` holds, or the engine had two preemptions in \
               the last minute, evicts conversations in progress, computes prompts of 8,000 tokens or more on \
               average, or runs a batch larger than four times the mean of its peers plus 16",
    remedy: "Compare clocks, temperature and processes of the GPU (nvidia-smi -q -d PERFORMANCE) \
             and the start flags of vLLM with those of a peer. Set the weight of the backend to 0 \
             until it is as fast as its peers.",
    disproof: "The backend has slower hardware, or a larger model under the same name.",
    needs: &[
        StepSignal::InterTokenSeconds,
        StepSignal::Gaps,
        StepSignal::Running,
    ],
    load: LoadDependence::Requests(Ratio::of(
        StepSignal::InterTokenSeconds,
        StepSignal::Gaps,
        MIN_GAPS,
    )),
    becomes_usual: true,
    judge: |evaluation| {
        let found = judge_slow_engine(evaluation);
        Ok(found.or_else(|| slower_than_usual(evaluation)))
    },
    ..DiagnosisRule::ENGINE
};

/// A share whose fall explains slower tokens.
struct SlowCause {
    share: WindowMeasure,
    origin: Origin,
    text: &'static str,
}

const CAUSES: [SlowCause; 3] = [
    SlowCause {
        share: WindowMeasure::DraftAcceptance,
        origin: Origin::Engine,
        text: "its engine accepts far fewer tokens of the draft model than usual: the draft does not fit the model any more",
    },
    SlowCause {
        share: WindowMeasure::PrefixHitRatio,
        origin: Origin::Requests,
        text: "its prefix cache has far fewer hits than usual: prompts begin differently, or are computed again, and their prefills \
               delay tokens",
    },
    SlowCause {
        share: WindowMeasure::GpuUtilization,
        origin: Origin::Engine,
        text: "its GPUs idle more than usual: the CPU of its host does not keep up (limit, neighbours, a job), or the engine waits for \
               something else",
    },
];

/// Whether the first tokens of the engine and of each peer come later than usual.
fn first_tokens_are_late(evaluation: &Evaluation<'_>) -> bool {
    let mut all = evaluation.peers().chain([evaluation.history]);
    all.all(|history| {
        let recent = history.window(RECENT).get(WindowMeasure::EngineTtft);
        let usual = history.past(WindowMeasure::EngineTtft);
        recent
            .zip(usual)
            .is_some_and(|(recent, usual)| recent >= SLOWER_FACTOR * usual)
    })
}

/// The match for an engine that is far slower than usual although it has no more work than usual.
fn slower_than_usual(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let factor = slowdown(evaluation.history)?;
    let recent = evaluation.recent;
    let history = evaluation.history;
    let running = recent.mean(StepSignal::Running)?;
    let usual_running = history.past(WindowMeasure::Running)?.max(1.0);
    // Slower tokens alone keep more requests running. Only a larger number than that means more work.
    let has_more_work =
        !has_usual_load(evaluation) || running > LARGER_BATCH_FACTOR * factor * usual_running;
    let is_preempting = recent.total(StepSignal::Preemptions) >= 2.0;
    if factor < SLOWER_FACTOR || has_more_work || is_preempting || computes_long_prompts(evaluation)
    {
        return None;
    }
    let peers = evaluation.peers().count();
    let slow_peers = evaluation
        .peers()
        .filter_map(slowdown)
        .filter(|peer| *peer >= SLOWER_PEER_FACTOR);
    let is_everywhere = 2 * slow_peers.count() >= peers;
    let place = match peers {
        0 => "",
        _ if is_everywhere => ", at its peers too",
        _ if first_tokens_are_late(evaluation) => {
            ", and the first tokens of its peers come late too"
        }
        _ => ", and its peers do not",
    };
    let cause = CAUSES.iter().find(|cause| cause.has_fallen(evaluation));
    let text = match cause {
        _ if gpus::is_throttled(evaluation) => THROTTLED,
        Some(cause) => cause.text,
        None if peers > 0 && first_tokens_are_late(evaluation) => {
            "the cause is common to them, such as a changed version, flag or model"
        }
        None => {
            "cannot tell which: the clocks of its GPUs, the CPU of its host, or a changed \
             version, flag or model"
        }
    };
    let mut measures = vec![WindowMeasure::EngineInterToken, WindowMeasure::Running];
    measures.extend(cause.map(|cause| cause.share));
    let text = format!("tokens take {factor:.1} times as long as usual{place}: {text}");
    Some(RuleMatch {
        severity: is_everywhere.then_some(VerdictSeverity::Critical),
        origin: cause.map(|cause| cause.origin),
        ..evaluation.found(measures.len(), &measures).because(text)
    })
}

impl SlowCause {
    fn has_fallen(&self, evaluation: &Evaluation<'_>) -> bool {
        let value = evaluation.recent.get(self.share);
        let usual = evaluation.history.past(self.share);
        value
            .zip(usual)
            .is_some_and(|(value, usual)| usual >= MIN_USUAL_SHARE && value <= FALLEN_PART * usual)
    }
}

/// Whether the engine and its peers together begin no more requests than usual: the sum matters because routing
/// shifts requests between them.
fn has_usual_load(evaluation: &Evaluation<'_>) -> bool {
    let mut starts = 0.0;
    let mut usual = 0.0;
    for history in evaluation.peers().chain([evaluation.history]) {
        let recent = history.window(RECENT);
        if let Some(rate) = history.past(WindowMeasure::RequestRate) {
            starts += recent.total(StepSignal::FirstTokens) / recent.seconds();
            usual += rate;
        }
    }
    usual > 0.0 && starts <= USUAL_LOAD_FACTOR * usual
}

/// The mean time between tokens of the last 20 s, as a multiple of the usual one. `None`: the value is unknown,
/// or the difference is too small to harm clients.
fn slowdown(history: &BackendHistory) -> Option<f64> {
    let recent = history.window(RECENT);
    let own = recent.ratio(StepSignal::InterTokenSeconds, StepSignal::Gaps, MIN_GAPS)?;
    let usual = history.past(WindowMeasure::EngineInterToken)?;
    (usual > 0.0 && own >= usual + MIN_SLOWER_SECONDS).then(|| own / usual)
}

fn judge_slow_engine(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.minute;
    // A slow engine generates few tokens, and routing avoids it. In a window of a minute, the many tokens from
    // before the fault would outweigh the few slow tokens.
    let recent = evaluation.recent;
    let own = recent.ratio(StepSignal::InterTokenSeconds, StepSignal::Gaps, MIN_GAPS)?;
    let peers = windows(evaluation.peers(), FAST);
    let mut peers: Vec<Pace> = peers.iter().filter_map(Pace::of).collect();
    // At least half of the peers are at least as fast as the median.
    peers.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let median = peers.get(peers.len() / 2)?.seconds;
    let running = window.get(WindowMeasure::Running).unwrap_or(0.0);
    let is_larger_batch = running > BATCH_FACTOR * mean_batch(&peers) + BATCH_SURPLUS;
    let is_preempting = window.total(StepSignal::Preemptions) >= 2.0;
    let is_slow = own >= SLOW_FACTOR * median && own >= MIN_INTER_TOKEN_SECONDS;
    // Long prompts, or prompts that are computed again, delay all streams even if the engine is not slow.
    let has_prompts = computes_long_prompts(evaluation) || cache::evicts_conversations(evaluation);
    if !is_slow || is_larger_batch || is_preempting || has_prompts {
        return None;
    }
    let signals = 1
        + usize::from(own >= 2.0 * SLOW_FACTOR * median)
        + usize::from(!evaluation.slow_start_evidence().is_empty());
    // A single peer may be unusually fast, so the confidence is then lower.
    let is_one = peers.len() == 1;
    let comparison = format!(
        "Its mean time between tokens is {:.0} ms; that of the other{} is {:.0} ms.",
        1e3 * own,
        if is_one { " backend" } else { "s" },
        1e3 * median
    );
    let signals = if is_one { signals.min(2) } else { signals };
    let measures = [
        WindowMeasure::EngineInterToken,
        WindowMeasure::EngineTtft,
        WindowMeasure::Running,
        WindowMeasure::Waiting,
    ];
    let found = evaluation.found(signals, &measures).remedy(comparison);
    if !gpus::is_throttled(evaluation) {
        return Some(found);
    }
    let measures = [WindowMeasure::GpuThrottled, WindowMeasure::GpuTemperature];
    let of_gpus = evaluation.found(signals + 1, &measures);
    Some(RuleMatch {
        signals: of_gpus.signals,
        ..found.with(of_gpus.evidence).because(THROTTLED)
    })
}

/// Whether the engine computes prompts so long that they delay all its streams. Both the prompts of streams
/// without output and the prompts of the last minute count.
fn computes_long_prompts(evaluation: &Evaluation<'_>) -> bool {
    let window = evaluation.minute;
    let pending = window.ratio(StepSignal::PendingTokens, StepSignal::Pending, 1.0);
    let is_long = |tokens: f64| tokens >= LONG_PROMPT_TOKENS;
    if pending.is_some_and(is_long) {
        return true;
    }
    let started = window.ratio(StepSignal::PromptTokens, StepSignal::FirstTokens, 1.0);
    let in_prefill = window.get(WindowMeasure::Prefilling).unwrap_or(0.0);
    in_prefill >= 0.5 && started.is_some_and(is_long)
}

/// The speed of an engine and its load.
struct Pace {
    /// Mean time between tokens, in seconds.
    seconds: f64,
    /// Mean number of running requests.
    running: f64,
}

impl Pace {
    fn of(window: &StepWindow<'_>) -> Option<Self> {
        Some(Self {
            seconds: window.get(WindowMeasure::EngineInterToken)?,
            running: window.get(WindowMeasure::Running)?,
        })
    }
}

fn mean_batch(peers: &[Pace]) -> f64 {
    peers.iter().map(|peer| peer.running).sum::<f64>() / peers.len() as f64
}
