//! The rule about a backend that routing avoids because it is slower than its peers. The backend gets
//! too few requests for the other rules.

use super::rule::DiagnosisRule;
use crate::evaluation::{Evaluation, RuleMatch, windows};
use crate::history::{BackendHistory, FAST, LONG_WINDOW, StepSignal, StepWindow, WindowMeasure};
use crate::verdict::{Evidence, VerdictSeverity};

/// A backend counts as avoided if its share of the requests is less than this part of its share of the
/// weights.
const AVOIDED_PART: f64 = 1.0 / 3.0;
/// Minimum number of requests of all backends in five minutes.
const MIN_REQUESTS: f64 = 30.0;
/// Minimum number of streams of the backend, and of all its peers together, for a comparison of their TTFT.
const MIN_STREAMS: f64 = 3.0;
/// If the TTFT of a backend is at least `SLOW_FACTOR` times the TTFT of its peers, and at least
/// `SLOW_SECONDS` longer, routing has a reason to avoid the backend. Different prompts and caches cause
/// smaller differences.
const SLOW_FACTOR: f64 = 1.5;
const SLOW_SECONDS: f64 = 0.05;
/// Minimum ratio of the p99 of the times between outputs of the backend to the highest such p99 of a peer.
const SLOW_GAP_FACTOR: f64 = 2.0;

pub(super) const BACKEND_AVOIDED: DiagnosisRule = DiagnosisRule {
    name: "backend_avoided",
    severity: VerdictSeverity::Warning,
    meaning: "Routing sends the backend few requests, because it is slower than its peers.",
    evidence: "In five minutes the backend and its peers had 30 requests or more. In this time and \
               in the last minute the backend got less than a third of its share by weight. Each \
               peer had requests in 80 % of the samples. The mean TTFT of the backend is 1.5 times \
               that of its peers, or its p99 between outputs is twice that of the slowest peer. \
               The difference is 50 ms or more.",
    excluded: "`kv_thrashing`, `kv_backlog`, `decode_starvation`, `slow_engine`, \
               `prefill_starvation`, `stalls` or `front_end_gap` holds",
    remedy: "Compare the machine, the network path and the start flags of the backend with those \
             of its peers. If it is slower on purpose, lower its weight.",
    disproof: "Requests that are sent directly to the backend are as fast as requests to its \
               peers.",
    pages: false,
    explained_by: &[
        "kv_thrashing",
        "kv_backlog",
        "decode_starvation",
        "slow_engine",
        "prefill_starvation",
        "stalls",
        "front_end_gap",
    ],
    needs: &[StepSignal::InFlight, StepSignal::Finished],
    judge: |evaluation| Ok(judge_backend_avoided(evaluation)),
};

fn judge_backend_avoided(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let has_five_minutes = |history: &BackendHistory| {
        history.window(LONG_WINDOW).seconds() >= LONG_WINDOW.as_secs_f64()
    };
    let peers: Vec<&BackendHistory> = evaluation
        .peers()
        .filter(|peer| has_five_minutes(peer) && peer.weight() > 0)
        .collect();
    if peers.is_empty() || !has_five_minutes(evaluation.history) {
        return None;
    }
    let weight = |history: &BackendHistory| f64::from(history.weight());
    let own_weight = weight(evaluation.history);
    let expected = own_weight / (own_weight + peers.iter().map(|peer| weight(peer)).sum::<f64>());
    let long = evaluation.long_window();
    let short = evaluation.short_window();
    let others = windows(peers.iter().copied(), LONG_WINDOW);
    let recent_others = windows(peers.iter().copied(), FAST);
    let total = requests(&long) + requests_of_all(&others);
    let recent_total = requests(&short) + requests_of_all(&recent_others);
    let own_share = requests(&long) / total.max(1.0);
    let recent_share = requests(&short) / recent_total.max(1.0);
    let is_avoided = own_share.max(recent_share) < AVOIDED_PART * expected && total >= MIN_REQUESTS;
    let is_busy =
        |other: &StepWindow<'_>| other.fraction_at_least(StepSignal::InFlight, 1.0) >= 0.8;
    if !is_avoided || !others.iter().all(is_busy) {
        return None;
    }
    let (cause, mut evidence) = slowness(&long, &others)?;
    let seconds = long.seconds();
    evidence.insert(
        0,
        Evidence::new("share_of_requests", own_share, "ratio", seconds),
    );
    evidence.insert(
        1,
        Evidence::new("share_by_weight", expected, "ratio", seconds),
    );
    Some(RuleMatch::new(2, evidence).because(cause))
}

/// Number of requests that ended in the window or are in flight at its end.
fn requests(window: &StepWindow<'_>) -> f64 {
    let ended = window.sum(StepSignal::Finished).unwrap_or(0.0);
    ended + window.latest(StepSignal::InFlight).unwrap_or(0.0)
}

fn requests_of_all(windows: &[StepWindow<'_>]) -> f64 {
    windows.iter().map(requests).sum()
}

/// The cause of [`BACKEND_AVOIDED`]: the latency in which the backend is slower than its peers. The evidence
/// has the value of the backend and the value of the peers. `None`: the backend is not slower.
fn slowness(
    own: &StepWindow<'_>,
    others: &[StepWindow<'_>],
) -> Option<(&'static str, Vec<Evidence>)> {
    let ttft = |windows: &[StepWindow<'_>], min_streams| {
        let sum = |signal| {
            windows
                .iter()
                .filter_map(|window| window.sum(signal))
                .sum::<f64>()
        };
        let streams = sum(StepSignal::FirstOutputs);
        (streams >= min_streams).then(|| sum(StepSignal::FirstOutputSeconds) / streams)
    };
    let seconds = own.seconds();
    let latency = |measure, value| Evidence::new(measure, value, "s", seconds);
    if let (Some(own), Some(other)) = (ttft(&[*own], MIN_STREAMS), ttft(others, MIN_STREAMS))
        && own >= SLOW_FACTOR * other
        && own >= other + SLOW_SECONDS
    {
        let evidence = vec![
            latency("ttft_mean", own),
            latency("ttft_mean_of_others", other),
        ];
        return Some((
            "its first tokens take longer than those of the others",
            evidence,
        ));
    }
    let own = own.get(WindowMeasure::GapP99)?;
    let gaps = others
        .iter()
        .filter_map(|window| window.get(WindowMeasure::GapP99));
    let other = gaps.max_by(f64::total_cmp)?;
    if own < SLOW_GAP_FACTOR * other || own < other + SLOW_SECONDS {
        return None;
    }
    let evidence = vec![
        latency("inter_token_p99", own),
        latency("inter_token_p99_of_others", other),
    ];
    Some((
        "its tokens come at longer intervals than those of the others",
        evidence,
    ))
}
