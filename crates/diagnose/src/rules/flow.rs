//! What comes of requests: streams that stand still, clients that leave, time lost before the
//! engine, and replicas that say nothing.

use super::super::FAST;
use super::super::case::{Case, FAR, Found, Judgement};
use super::super::measure::Measure;
use super::super::step::Signal;
use super::super::verdict::Severity;
use super::Rule;

/// Steps of the fast window without a page after which a replica is said to be silent.
const SILENT_STEPS: f64 = 9.0;
/// Lag of the front end, in seconds, that is felt.
const LAG: f64 = 0.1;
/// Share of clients that leave anywhere.
const CANCELLED: f64 = 0.05;
/// As a share of the time to first token.
const LAG_SHARE: f64 = 0.2;

pub(super) const BLIND: Rule = Rule {
    name: "blind",
    severity: Severity::Warning,
    meaning: "The replica is up and its metrics cannot be read: it is routed by what is in flight \
              from here.",
    remedy: "Run tokenweir doctor against it. A replica that is well has a page at /metrics; \
             --disable-log-stats and a proxy in between take it away, and a slow one needs more \
             CPU for its API server.",
    disproof: "curl http://REPLICA/metrics shows vllm:num_requests_running within a second.",
    explained_by: &[],
    needs: &[],
    judge: blind,
};

pub(super) const STALLS: Rule = Rule {
    name: "stalls",
    severity: Severity::Critical,
    meaning: "Streams of the replica fall silent in the middle of their answers.",
    remedy: "Look at the replica's log and GPU: nvidia-smi, dmesg for Xid errors, a stuck \
             collective. Set its weight to 0 if it does not go on.",
    disproof: "The silent streams are all of one client, or the clients do not take what has come.",
    explained_by: &["kv_thrashing", "decode_starvation"],
    needs: &[Signal::Stalls, Signal::Stalled, Signal::InFlight],
    judge: stalls,
};

pub(super) const ABORT_SPIKE: Rule = Rule {
    name: "abort_spike",
    severity: Severity::Warning,
    meaning: "Many more clients than usual leave before their answer is whole.",
    remedy: "Compare the clients' timeout with how long answers take, and see which clients they \
             are: the access log has each with ending client_cancelled.",
    disproof: "A deployment of the clients ends connections at the same time.",
    explained_by: &[
        "kv_thrashing",
        "kv_backlog",
        "decode_starvation",
        "prefill_starvation",
        "stalls",
    ],
    needs: &[Signal::Cancelled, Signal::Finished],
    judge: abort_spike,
};

pub(super) const FRONT_END_GAP: Rule = Rule {
    name: "front_end_gap",
    severity: Severity::Warning,
    meaning: "Requests lose time between the gateway and the engine: in the API server of the \
              replica, or on the way to it.",
    remedy: "Give the API server more CPU or processes (--api-server-count), and measure the round \
             trip from the gateway to the replica.",
    disproof: "Other clients of the replica see the same time to first token as its engine.",
    explained_by: &[],
    needs: &[Signal::FirstTokens, Signal::FirstOutputs],
    judge: front_end_gap,
};

fn blind(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let steps = window.len() as f64;
    let silent = steps - window.values(Signal::Running).count() as f64;
    let is_fresh = window.latest(Signal::Running).is_some();
    if silent < SILENT_STEPS || is_fresh {
        return Judgement::Absent;
    }
    Judgement::Present(Found::new(2, case.evidences(&[Measure::InFlight])))
}

fn stalls(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let stalls = window.sum(Signal::Stalls).unwrap_or(0.0);
    let streams = window.sum(Signal::FirstOutputs).unwrap_or(0.0);
    let in_flight = window.get(Measure::InFlight).unwrap_or(0.0);
    let stalled = window.quantile(Signal::Stalled, 0.5).unwrap_or(0.0);
    // A stream of many that pauses is an accident.
    let is_often = stalls >= 3.0 && stalls >= 0.05 * (streams + in_flight);
    let is_still = stalled >= 2.0 && stalled >= 0.2 * in_flight;
    if !is_often && !is_still {
        return Judgement::Absent;
    }
    let also = case.others.iter().filter(|other| {
        let stalls = other.window(FAST).sum(Signal::Stalls);
        stalls.is_some_and(|stalls| stalls >= 3.0)
    });
    let is_everywhere = !case.others.is_empty() && also.count() == case.others.len();
    let is_silent = window.values(Signal::Running).count() * 2 < window.len();
    let cause = if is_everywhere {
        "all replicas: the gateway's machine, or the network"
    } else if is_silent {
        "its metrics are silent as well: the process is frozen"
    } else {
        "this replica's engine"
    };
    let tokens = window.get(Measure::GenerationRate);
    let is_stuck = tokens.is_some_and(|rate| rate < 1.0) && in_flight >= 1.0;
    let signals = [is_often, is_still, is_stuck, !case.slow_tokens().is_empty()];
    let measures =
        [Measure::StallRate, Measure::InFlight, Measure::GenerationRate, Measure::GapP99];
    let signals = signals.iter().filter(|is_it| **is_it).count();
    Judgement::Present(Found::new(signals, case.evidences(&measures)).because(cause))
}

fn abort_spike(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let Some(ratio) = window.get(Measure::CancelRatio) else { return Judgement::Absent };
    let cancelled = window.sum(Signal::Cancelled).unwrap_or(0.0);
    if ratio < 0.1 || cancelled < 5.0 {
        return Judgement::Absent;
    }
    let Some(usual) = case.usual(Measure::CancelRatio) else {
        return Judgement::Unknown("its usual share of clients that leave: it takes five minutes");
    };
    // By chance alone, so many of so few leave less than once in a year.
    let (usual, count) = (usual.median.max(CANCELLED), cancelled / ratio);
    let chance = (count * usual * (1.0 - usual).max(0.01)).sqrt();
    if ratio < 3.0 * usual || cancelled < count * usual + FAR * chance {
        return Judgement::Absent;
    }
    let mean = window.ratio(Signal::CancelSeconds, Signal::Cancelled, 1.0).unwrap_or(0.0);
    let square = window.ratio(Signal::CancelSquares, Signal::Cancelled, 1.0).unwrap_or(0.0);
    let spread = (square - mean * mean).max(0.0).sqrt();
    let is_timeout = mean >= 1.0 && spread <= 0.1 * mean;
    let found = Found::new(
        1 + usize::from(is_timeout),
        case.evidences(&[Measure::CancelRatio, Measure::Ttft, Measure::GapP99]),
    );
    let waited = format!("They left after {mean:.1} s on the whole (deviation {spread:.1} s).");
    let cause = if is_timeout { "a timeout of the clients" } else { "clients lose patience" };
    Judgement::Present(found.because(cause).remedy(Some(waited)))
}

fn front_end_gap(case: &Case<'_>) -> Judgement {
    let window = case.fast();
    let Some(lag) = window.get(Measure::FrontEnd) else { return Judgement::Absent };
    let ttft = window.get(Measure::Ttft).unwrap_or(0.0);
    let is_felt = lag >= LAG.max(LAG_SHARE * ttft);
    // What always was so is the network.
    let is_new = case.usual(Measure::FrontEnd).is_none_or(|usual| lag >= 2.0 * usual.median);
    if !is_felt || !is_new {
        return Judgement::Absent;
    }
    let inside =
        window.get(Measure::Running).unwrap_or(0.0) + window.get(Measure::Waiting).unwrap_or(0.0);
    let is_held = window.get(Measure::InFlight).is_some_and(|here| here >= inside + 1.0);
    let has_risen = case.has_risen(Measure::FrontEnd, 2.0);
    let signals = 1 + usize::from(is_held) + usize::from(has_risen);
    let measures = [
        Measure::FrontEnd,
        Measure::Ttft,
        Measure::EngineTtft,
        Measure::InFlight,
        Measure::Running,
    ];
    Judgement::Present(Found::new(signals, case.evidences(&measures)))
}
