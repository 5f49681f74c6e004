//! Rules that compare backends: one has no work, or much more than another, while requests wait.

use super::rule::DiagnosisRule;
use crate::evaluation::{Evaluation, RuleMatch, RuleOutcome, queues};
use crate::history::{BackendHistory, FAST, HistoryStep, StepSignal, WindowMeasure};
use crate::verdict::VerdictSeverity;
use std::time::Duration;

/// A backend that restarted less than this ago is not compared: its cache is cold, and it gets
/// requests gradually.
const WARMUP_PERIOD: Duration = Duration::from_mins(2);
/// Minimum ratio of the requests of the busiest and the least busy backend.
const IMBALANCE_FACTOR: f64 = 2.0;
/// Minimum difference of KV usage.
const MIN_KV_USAGE_DIFFERENCE: f64 = 0.30;
/// Minimum number of requests on all backends together.
const MIN_TOTAL_REQUESTS: f64 = 5.0;

pub(super) const GPU_UNDERUSED: DiagnosisRule = DiagnosisRule {
    name: "gpu_underused",
    severity: VerdictSeverity::Warning,
    meaning: "The engine has almost no work while requests wait elsewhere.",
    remedy: "Find out why it gets no requests: its weight, its models, a session or prefix \
             affinity that is too strict (routing), limits of the admission queue (admission).",
    disproof: "The backend does not serve the models of the waiting requests.",
    explained_by: &["blind"],
    needs: &[StepSignal::Running, StepSignal::Waiting],
    judge: judge_gpu_underused,
};

pub(super) const IMBALANCE: DiagnosisRule = DiagnosisRule {
    name: "imbalance",
    severity: VerdictSeverity::Warning,
    meaning: "The backend has at least twice the load of another one, and its clients wait for it.",
    remedy: "Use routing.policy: kv_aware, set weights that match the machines, and check whether \
             a few long sessions stick to this backend.",
    disproof: "The backends serve different models, or run on machines of different sizes.",
    explained_by: &[
        "kv_thrashing",
        "kv_backlog",
        "decode_starvation",
        "prefill_starvation",
        "stalls",
        "memory_leak",
    ],
    needs: &[StepSignal::Running, StepSignal::Waiting, StepSignal::KvUsage],
    judge: judge_imbalance,
};

fn judge_gpu_underused(case: &Evaluation<'_>) -> RuleOutcome {
    let window = case.fast();
    let is_idle = window.share(StepSignal::Running, 1.5) <= 0.2
        && window.share(StepSignal::Waiting, 1.0) <= 0.2;
    let is_gateway_queueing = window.share(StepSignal::GatewayQueue, 1.0) >= 0.8;
    let queueing = case.others.iter().filter(|other| queues(other)).count();
    let is_warm = !case.history.has_restarted_within(WARMUP_PERIOD);
    if !is_idle || (!is_gateway_queueing && queueing == 0) || !is_warm {
        return RuleOutcome::Absent;
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
    ];
    RuleOutcome::Present(RuleMatch::new(signals, case.evidence_for_all(&measures)).because(cause))
}

/// Mean number of requests in an engine.
fn mean_engine_requests(history: &BackendHistory) -> Option<f64> {
    let window = history.window(FAST);
    Some(window.get(WindowMeasure::Running)? + window.get(WindowMeasure::Waiting)?)
}

/// Number of requests in an engine in one step.
fn engine_requests(step: &HistoryStep) -> Option<f64> {
    Some(step.get(StepSignal::Running)? + step.get(StepSignal::Waiting)?)
}

fn judge_imbalance(case: &Evaluation<'_>) -> RuleOutcome {
    let others = case.others.iter().filter(|other| !other.has_restarted_within(WARMUP_PERIOD));
    let mut others: Vec<(f64, &BackendHistory)> =
        others.filter_map(|other| Some((mean_engine_requests(other)?, *other))).collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0));
    let own = mean_engine_requests(case.history);
    let (Some(own), Some((least, idlest))) = (own, others.first()) else {
        return RuleOutcome::Absent;
    };
    let is_busiest = others.iter().all(|(work, _)| *work <= own);
    let total = own + others.iter().map(|(work, _)| work).sum::<f64>();
    // If another backend is idle, `gpu_underused` is the condition.
    let (window, other) = (case.fast(), idlest.window(FAST));
    let has_work = other.point_fraction_at_least(engine_requests, 1.5) >= 0.8;
    let is_shared = has_work && total >= MIN_TOTAL_REQUESTS;
    let is_always =
        window.point_fraction_at_least(engine_requests, IMBALANCE_FACTOR * least) >= 0.8;
    if !is_busiest || own < IMBALANCE_FACTOR * least || !is_shared || !is_always {
        return RuleOutcome::Absent;
    }
    let usage = window.get(WindowMeasure::KvUsage).zip(other.get(WindowMeasure::KvUsage));
    let is_fuller = usage.is_some_and(|(own, other)| own - other >= MIN_KV_USAGE_DIFFERENCE);
    let queues_alone = case.queues() && !queues(idlest);
    let is_slower =
        [WindowMeasure::Ttft, WindowMeasure::EngineTtft, WindowMeasure::EngineInterToken].map(
            |measure| {
                let times = window.get(measure).zip(other.get(measure));
                times.is_some_and(|(own, other)| own >= IMBALANCE_FACTOR * other && own >= 0.05)
            },
        );
    let is_slower = is_slower.contains(&true);
    if !(queues_alone || is_slower && is_fuller) {
        return RuleOutcome::Absent;
    }
    let signals = [is_fuller, queues_alone, is_slower].iter().filter(|is_it| **is_it).count();
    let measures = [
        WindowMeasure::Running,
        WindowMeasure::Waiting,
        WindowMeasure::KvUsage,
        WindowMeasure::EngineTtft,
        WindowMeasure::EngineInterToken,
    ];
    let found = RuleMatch::new(signals, case.evidence_for_all(&measures));
    let comparison = format!(
        "It has {own:.0} requests; the least busy of the others has {least:.0}, with a KV usage of \
         {:.0} %.",
        100.0 * other.get(WindowMeasure::KvUsage).unwrap_or(0.0)
    );
    RuleOutcome::Present(found.remedy(Some(comparison)))
}
