//! Rules that compare backends: one backend has no work, or much more work than another backend,
//! while requests wait.

use super::rule::DiagnosisRule;
use crate::evaluation::{Evaluation, RuleMatch, has_queue};
use crate::history::{BackendHistory, FAST, HistoryStep, StepSignal, StepWindow, WindowMeasure};
use crate::verdict::VerdictSeverity;
use std::time::Duration;

/// Time after a restart, a drain or another exclusion of a backend in which few requests at the backend are
/// no fault, because the number of its requests grows gradually.
const WARMUP_PERIOD: Duration = Duration::from_mins(2);
/// Minimum ratio of the number of requests at the busiest backend to the number at the least busy backend.
const IMBALANCE_FACTOR: f64 = 2.0;
/// Minimum ratio of the number of requests that a backend with a queue started to the number that an
/// underused backend started.
const UNDERUSE_FACTOR: f64 = 2.0;
/// Minimum difference of KV usage between the busiest and the least busy backend.
const MIN_KV_USAGE_DIFFERENCE: f64 = 0.30;
/// Minimum number of requests on all backends together.
const MIN_TOTAL_REQUESTS: f64 = 5.0;

pub(super) const GPU_UNDERUSED: DiagnosisRule = DiagnosisRule {
    name: "gpu_underused",
    severity: VerdictSeverity::Warning,
    meaning: "The engine has almost no work while requests wait elsewhere.",
    evidence: "In 80 % of the samples of the last minute, and now, the engine runs at most one \
               request and has no queue. One of these also holds: in 80 % of the samples requests \
               wait in the gateway, or another backend with the same models has a queue and started \
               at least twice as many requests in this minute.",
    excluded: "`blind` holds, or the backend restarted or was unavailable in the last two minutes",
    remedy: "Find out why the backend gets few requests: its weight, its models, a policy with \
             session or prefix affinity, or `admission` limits.",
    disproof: "The backend does not serve the models of the waiting requests.",
    pages: false,
    explained_by: &["blind"],
    needs: &[StepSignal::Running, StepSignal::Waiting],
    judge: |evaluation| Ok(judge_gpu_underused(evaluation)),
};

pub(super) const IMBALANCE: DiagnosisRule = DiagnosisRule {
    name: "imbalance",
    severity: VerdictSeverity::Warning,
    meaning: "The backend has at least twice as many requests as a peer, and its clients wait.",
    evidence: "In the last minute no peer has more requests in its engine. On average and in 80 % \
               of the samples the backend has at least twice as many as the least busy peer; all \
               together have five or more. Only the backend, and not this peer, has a queue; or \
               its KV usage is 30 points higher, and its TTFT or time between tokens is twice as \
               long and ≥ 50 ms.",
    excluded: "`kv_thrashing`, `kv_backlog`, `decode_starvation`, `slow_engine`, \
               `prefill_starvation`, `stalls` or `memory_leak` holds, or the least busy peer has \
               fewer than two requests. A peer that restarted or was unavailable in the last two \
               minutes does not count",
    remedy: "Use routing.policy: kv_aware, set weights that match the machines, and check whether \
             a few long sessions stick to this backend.",
    disproof: "The backends serve different models, or run on machines of different sizes.",
    pages: false,
    explained_by: &[
        "kv_thrashing",
        "kv_backlog",
        "decode_starvation",
        "slow_engine",
        "prefill_starvation",
        "stalls",
        "memory_leak",
    ],
    needs: &[
        StepSignal::Running,
        StepSignal::Waiting,
        StepSignal::KvUsage,
    ],
    judge: |evaluation| Ok(judge_imbalance(evaluation)),
};

fn judge_gpu_underused(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.short_window();
    // The backend must also be idle in the newest step: if it has just got requests, for example after
    // a drain, it is no longer underused.
    let is_below = |signal, limit| window.latest(signal).is_none_or(|value| value < limit);
    let is_idle = window.fraction_at_least(StepSignal::Running, 1.5) <= 0.2
        && window.fraction_at_least(StepSignal::Waiting, 1.0) <= 0.2
        && is_below(StepSignal::Running, 1.5)
        && is_below(StepSignal::Waiting, 1.0)
        && is_below(StepSignal::InFlight, 2.0);
    let is_gateway_queueing = window.fraction_at_least(StepSignal::GatewayQueue, 1.0) >= 0.8;
    let queueing = evaluation
        .peers()
        .filter(|other| has_queue(other) && gets_more(other, evaluation.history));
    let queueing = queueing.count();
    let is_warm = is_warm(evaluation.history);
    if !is_idle || (!is_gateway_queueing && queueing == 0) || !is_warm {
        return None;
    }
    let cause = if is_gateway_queueing {
        "requests wait in the gateway"
    } else {
        "requests wait in the engines of other backends"
    };
    let signals = usize::from(is_gateway_queueing) + queueing.min(2) + 1;
    let measures = [
        WindowMeasure::Running,
        WindowMeasure::Waiting,
        WindowMeasure::InFlight,
        WindowMeasure::GenerationRate,
        WindowMeasure::GpuUtilization,
    ];
    Some(RuleMatch::new(signals, evaluation.evidence_for_all(&measures)).because(cause))
}

/// Whether `other` started at least [`UNDERUSE_FACTOR`] times as many requests as `own` in the short window.
/// If not, `own` gets its share of the requests and completes them faster, so `other` has a queue because it
/// is slow, and not because `own` is underused. True if one of the numbers is unknown.
fn gets_more(other: &BackendHistory, own: &BackendHistory) -> bool {
    let started = |history: &BackendHistory| history.window(FAST).sum(StepSignal::FirstTokens);
    let (Some(other), Some(own)) = (started(other), started(own)) else {
        return true;
    };
    own < 1.0 || other >= UNDERUSE_FACTOR * own
}

/// Whether the backend has neither restarted nor been excluded from requests in the last [`WARMUP_PERIOD`].
fn is_warm(history: &BackendHistory) -> bool {
    !history.has_restarted_within(WARMUP_PERIOD) && !history.was_unavailable_within(WARMUP_PERIOD)
}

/// Mean number of running and waiting requests in an engine in the short window. `None`: unknown.
fn mean_engine_requests(history: &BackendHistory) -> Option<f64> {
    let window = history.window(FAST);
    Some(window.get(WindowMeasure::Running)? + window.get(WindowMeasure::Waiting)?)
}

/// Number of running and waiting requests in an engine in one step of the history. `None`: unknown.
fn engine_requests(step: &HistoryStep) -> Option<f64> {
    Some(step.get(StepSignal::Running)? + step.get(StepSignal::Waiting)?)
}

/// The warm backends that serve the same models, the least busy first, each with its mean number of
/// running and waiting requests.
fn warm_peers_by_requests<'a>(evaluation: &Evaluation<'a>) -> Vec<(f64, &'a BackendHistory)> {
    let peers = evaluation.peers().filter(|other| is_warm(other));
    let mut peers: Vec<(f64, &BackendHistory)> = peers
        .filter_map(|other| Some((mean_engine_requests(other)?, other)))
        .collect();
    peers.sort_by(|a, b| a.0.total_cmp(&b.0));
    peers
}

/// Whether a latency of `own` is at least [`IMBALANCE_FACTOR`] times that of `other`, and at least
/// 50 ms.
fn is_slower(own: &StepWindow<'_>, other: &StepWindow<'_>) -> bool {
    let latencies = [
        WindowMeasure::Ttft,
        WindowMeasure::EngineTtft,
        WindowMeasure::EngineInterToken,
    ];
    latencies.into_iter().any(|latency| {
        let times = own.get(latency).zip(other.get(latency));
        times.is_some_and(|(own, other)| own >= IMBALANCE_FACTOR * other && own >= 0.05)
    })
}

fn judge_imbalance(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let others = warm_peers_by_requests(evaluation);
    let own_requests = mean_engine_requests(evaluation.history)?;
    let (min_requests, least_busy) = others.first()?;
    let is_busiest = others.iter().all(|(work, _)| *work <= own_requests);
    let total = own_requests + others.iter().map(|(work, _)| work).sum::<f64>();
    // If the least busy backend is idle, the rule `gpu_underused` applies instead.
    let window = evaluation.short_window();
    let other = least_busy.window(FAST);
    let has_work = other.step_fraction_at_least(engine_requests, 1.5) >= 0.8;
    let is_shared = has_work && total >= MIN_TOTAL_REQUESTS;
    let is_always =
        window.step_fraction_at_least(engine_requests, IMBALANCE_FACTOR * min_requests) >= 0.8;
    if !is_busiest || own_requests < IMBALANCE_FACTOR * min_requests || !is_shared || !is_always {
        return None;
    }
    let usage = window
        .get(WindowMeasure::KvUsage)
        .zip(other.get(WindowMeasure::KvUsage));
    let is_fuller = usage.is_some_and(|(own, other)| own - other >= MIN_KV_USAGE_DIFFERENCE);
    let only_this_queues = evaluation.has_queue() && !has_queue(least_busy);
    let is_slower = is_slower(&window, &other);
    if !(only_this_queues || is_slower && is_fuller) {
        return None;
    }
    let signals = [is_fuller, only_this_queues, is_slower]
        .iter()
        .filter(|is_present| **is_present)
        .count();
    let measures = [
        WindowMeasure::Running,
        WindowMeasure::Waiting,
        WindowMeasure::KvUsage,
        WindowMeasure::EngineTtft,
        WindowMeasure::EngineInterToken,
    ];
    let rule_match = RuleMatch::new(signals, evaluation.evidence_for_all(&measures));
    let comparison = format!(
        "It has {own_requests:.0} requests; the least busy of the others has {min_requests:.0}, with \
         a KV usage of {:.0} %.",
        100.0 * other.get(WindowMeasure::KvUsage).unwrap_or(0.0)
    );
    Some(rule_match.remedy(Some(comparison)))
}
