//! Replicas beside each other: one has nothing to do, or much more than another, while requests
//! wait.

use super::super::FAST;
use super::super::case::{Case, Found, Judgement, queues};
use super::super::history::History;
use super::super::measure::Measure;
use super::super::step::{Signal, Step};
use super::super::verdict::Severity;
use super::Rule;
use std::time::Duration;

/// A replica that began less than this ago is not compared: its cache is cold, and it is given
/// work slowly.
const WARM: Duration = Duration::from_mins(2);
/// Requests at the busiest over those at the least busy.
const TIMES: f64 = 2.0;
/// Difference of KV usage.
const KV_GAP: f64 = 0.30;
/// Fewer requests in all are not worth sharing.
const LEAST: f64 = 5.0;

pub(super) const GPU_UNDERUSED: Rule = Rule {
    name: "gpu_underused",
    severity: Severity::Warning,
    meaning: "The engine has next to nothing to do while requests wait elsewhere.",
    remedy: "Look at why it is sent nothing: its weight, its models, an affinity that is too strict \
             (routing), limits of the gateway's queue (admission).",
    disproof: "The replica does not serve what the waiting requests ask for.",
    explained_by: &["blind"],
    needs: &[Signal::Running, Signal::Waiting],
    judge: underused,
};

pub(super) const IMBALANCE: Rule = Rule {
    name: "imbalance",
    severity: Severity::Warning,
    meaning: "The replica has at least twice the work of another one, and its users wait for it.",
    remedy: "Use routing.policy: kv_aware, make weights match the machines, and see whether a few \
             long sessions stick to this replica.",
    disproof: "The replicas serve different models, or machines of different sizes.",
    explained_by: &[
        "kv_thrashing",
        "kv_backlog",
        "decode_starvation",
        "prefill_starvation",
        "stalls",
        "memory_leak",
    ],
    needs: &[Signal::Running, Signal::Waiting, Signal::KvUsage],
    judge: imbalance,
};

fn underused(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let is_idle =
        window.share(Signal::Running, 1.5) <= 0.2 && window.share(Signal::Waiting, 1.0) <= 0.2;
    let gateway = window.share(Signal::GatewayQueue, 1.0) >= 0.8;
    let queues = case.others.iter().filter(|other| queues(other)).count();
    if !is_idle || (!gateway && queues == 0) || case.history.is_young(WARM) {
        return Judgement::Absent;
    }
    let cause = if gateway {
        "requests wait in the gateway"
    } else {
        "requests wait in the engines of other replicas"
    };
    let signals = usize::from(gateway) + queues.min(2) + 1;
    let measures = [Measure::Running, Measure::Waiting, Measure::InFlight, Measure::GenerationRate];
    Judgement::Present(Found::new(signals, case.evidences(&measures)).because(cause))
}

/// Requests in an engine on the whole.
fn work(history: &History) -> Option<f64> {
    let window = history.window(FAST);
    Some(window.get(Measure::Running)? + window.get(Measure::Waiting)?)
}

/// Requests in an engine at one moment.
fn inside(step: &Step) -> Option<f64> {
    Some(step.get(Signal::Running)? + step.get(Signal::Waiting)?)
}

fn imbalance(case: &Case<'_>) -> Judgement {
    let others = case.others.iter().filter(|other| !other.is_young(WARM));
    let mut others: Vec<(f64, &History)> =
        others.filter_map(|other| Some((work(other)?, *other))).collect();
    others.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some(own), Some((least, idlest))) = (work(case.history), others.first()) else {
        return Judgement::Absent;
    };
    let busiest = others.iter().all(|(work, _)| *work <= own);
    let total = own + others.iter().map(|(work, _)| work).sum::<f64>();
    // Beside a replica that idles, that one is the condition.
    let (window, other) = (case.fast(), idlest.window(FAST));
    let is_shared = other.share_of(inside, 1.5) >= 0.8 && total >= LEAST;
    let is_always = window.share_of(inside, TIMES * least) >= 0.8;
    if !busiest || own < TIMES * least || !is_shared || !is_always {
        return Judgement::Absent;
    }
    let usage = window.get(Measure::KvUsage).zip(other.get(Measure::KvUsage));
    let is_fuller = usage.is_some_and(|(own, other)| own - other >= KV_GAP);
    let queues_alone = case.queues() && !queues(idlest);
    let is_slower = [Measure::Ttft, Measure::EngineTtft, Measure::EngineGap].map(|measure| {
        let times = window.get(measure).zip(other.get(measure));
        times.is_some_and(|(own, other)| own >= TIMES * other && own >= 0.05)
    });
    let is_slower = is_slower.contains(&true);
    if !(queues_alone || is_slower && is_fuller) {
        return Judgement::Absent;
    }
    let signals = [is_fuller, queues_alone, is_slower].iter().filter(|is_it| **is_it).count();
    let measures = [
        Measure::Running,
        Measure::Waiting,
        Measure::KvUsage,
        Measure::EngineTtft,
        Measure::EngineGap,
    ];
    let found = Found::new(signals, case.evidences(&measures));
    let told = format!(
        "It has {own:.0} requests; the least busy of the others has {least:.0}, with a KV usage of \
         {:.0} %.",
        100.0 * other.get(Measure::KvUsage).unwrap_or(0.0)
    );
    Judgement::Present(found.remedy(Some(told)))
}
