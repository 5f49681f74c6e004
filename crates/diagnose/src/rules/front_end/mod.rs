//! The rule about time that requests lose between the gateway and the engine: when connections are opened, on
//! the network, or in the API server of the backend.

mod cause;

pub(super) use cause::{PagePlace, late_pages};

use crate::history::MIN_COMPARED_STREAMS;
use crate::rule::prelude::*;

/// Minimum lag of the front end for the rule `front_end_gap`, in seconds. The lag is the mean TTFT of the
/// gateway minus that of the engine.
const MIN_LAG_SECONDS: f64 = 0.1;
/// The rule `front_end_gap` compares the front-end lag of the backend in the recent window with those of its
/// peers. A backend needs at least `MIN_RECENT_STREAMS` streams in this window, and the lag of each peer may be
/// at most `MAX_LAG_OF_PEER` times the lag of the backend. The window is short, because routing soon sends few
/// requests to a slow backend. A window of a minute would still include the time before the fault.
const MIN_RECENT_STREAMS: f64 = 8.0;
const MAX_LAG_OF_PEER: f64 = 0.5;
/// Minimum lag of the front end for the rule `front_end_gap` at a backend with few requests, in seconds. It
/// applies to the lag of the last five minutes.
const MIN_LAG_SECONDS_OF_FEW: f64 = 0.25;
/// Minimum lag of the front end as a share of the TTFT, for the rule `front_end_gap`.
const MIN_LAG_RATIO: f64 = 0.2;

pub(in crate::rules) const FRONT_END_GAP: DiagnosisRule = DiagnosisRule {
    name: "front_end_gap",
    meaning: "Requests lose time between the gateway and the engine: on the network, while they connect, or in the API \
              server of the backend.",
    evidence: "The lag is the mean TTFT of the gateway minus that of the engine; both must count \
               the same streams. It is ≥ 100 ms in a minute with 20 streams or more, ≥ 250 ms in \
               five minutes with fewer, or ≥ 100 ms in 20 s and twice that of each peer. It is \
               also ≥ 20 % of the TTFT and twice usual. Or three new connections of a minute took 0.5 s or more on \
               average. The cause follows from the times of connections and of metrics pages, from the number of tokens \
               that arrive at once, and from the kinds of prompts that wait.",
    excluded: "`shared_backend` holds",
    remedy: "Give the API server more CPU or processes (--api-server-count), and measure the \
             round-trip time from the gateway to the backend.",
    disproof: "Other clients of the backend see the same time to first token as its engine.",
    needs: &[StepSignal::FirstTokens, StepSignal::FirstOutputs],
    load: LoadDependence::Requests(Ratio::of(
        StepSignal::FirstOutputSeconds,
        StepSignal::FirstOutputs,
        5.0,
    )),
    judge: |evaluation| Ok(judge_front_end_gap(evaluation)),
    ..DiagnosisRule::ENGINE
};

fn judge_front_end_gap(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    if let Some(found) = cause::slow_connects(evaluation) {
        return Some(found);
    }
    let short = evaluation.minute;
    let recent = evaluation.recent;
    let recent_lag = lag_above_peers(evaluation);
    let has_few =
        recent_lag.is_none() && short.total(StepSignal::FirstOutputs) < MIN_COMPARED_STREAMS;
    let window = match recent_lag {
        Some(_) => recent,
        None if has_few => evaluation.long,
        None => short,
    };
    let lag = recent_lag.or_else(|| window.get(WindowMeasure::FrontEnd))?;
    let ttft = window.get(WindowMeasure::Ttft).unwrap_or(0.0);
    let min_lag = if has_few {
        MIN_LAG_SECONDS_OF_FEW
    } else {
        MIN_LAG_SECONDS
    };
    let is_significant = lag >= min_lag.max(MIN_LAG_RATIO * ttft);
    // A lag of less than twice its usual value is attributed to the network, not to the front end.
    let is_new = evaluation
        .baseline(WindowMeasure::FrontEnd)
        .is_none_or(|usual| lag >= 2.0 * usual.median);
    let is_over = if has_few {
        has_ended(short, 2.0)
    } else {
        has_ended(recent, 5.0)
    };
    if !is_significant || !is_new || is_over {
        return None;
    }
    let matched = with_evidence(evaluation, window, lag);
    Some(cause::explained(matched, evaluation, lag))
}

/// Whether the gateway and the engine saw the latest first outputs at about the same time.
fn has_ended(recent: StepWindow<'_>, min_count: f64) -> bool {
    let of_gateway = recent.ratio(
        StepSignal::FirstOutputSeconds,
        StepSignal::FirstOutputs,
        min_count,
    );
    let of_engine = recent.ratio(
        StepSignal::FirstTokenSeconds,
        StepSignal::FirstTokens,
        min_count,
    );
    match (of_gateway, of_engine) {
        (Some(gateway), Some(engine)) => gateway - engine < MIN_LAG_SECONDS,
        _ => false,
    }
}

fn with_evidence(evaluation: &Evaluation<'_>, window: StepWindow<'_>, lag: f64) -> RuleMatch {
    let in_engine = window.get(WindowMeasure::Running).unwrap_or(0.0)
        + window.get(WindowMeasure::Waiting).unwrap_or(0.0);
    let in_flight = window.get(WindowMeasure::InFlight);
    let is_queued_outside = in_flight.is_some_and(|in_flight| in_flight >= in_engine + 1.0);
    let has_risen = evaluation.has_risen(WindowMeasure::FrontEnd, 2.0);
    let signals = 1 + usize::from(is_queued_outside) + usize::from(has_risen);
    let measures = [
        WindowMeasure::Ttft,
        WindowMeasure::EngineTtft,
        WindowMeasure::InFlight,
        WindowMeasure::Running,
    ];
    let usual = evaluation.baseline(WindowMeasure::FrontEnd);
    let usual = usual.map(|usual| usual.median);
    let evidence = Evidence::of(WindowMeasure::FrontEnd, lag, usual, window.seconds());
    let found = evaluation.found(signals, &measures);
    RuleMatch::new(found.signals, vec![evidence]).with(found.evidence)
}

/// The lag of the front end in the recent window, in seconds, if it is significant and far larger than that of
/// each peer. The gateway is then not the cause. `None`: the lag is not significant, a peer has a similar lag,
/// or there are too few streams.
fn lag_above_peers(evaluation: &Evaluation<'_>) -> Option<f64> {
    let lag = evaluation.recent.front_end_lag(MIN_RECENT_STREAMS)?;
    let peers = windows(evaluation.peers(), RECENT);
    let lags = peers
        .iter()
        .filter_map(|peer| peer.front_end_lag(MIN_RECENT_STREAMS));
    let highest = lags.reduce(f64::max)?;
    (lag >= MIN_LAG_SECONDS && highest <= MAX_LAG_OF_PEER * lag).then_some(lag)
}

#[cfg(test)]
mod tests;
