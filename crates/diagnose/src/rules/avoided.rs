//! The rule about a backend that routing avoids because it is slower than its peers. The backend gets
//! too few requests for the other rules.

use crate::rule::prelude::*;

/// Maximum ratio of the backend's share of the requests to its share of the weights, for an avoided backend.
const AVOIDED_PART: f64 = 1.0 / 3.0;
/// Minimum number of requests of all backends in five minutes.
const MIN_REQUESTS: f64 = 30.0;
/// The TTFT of the backend, and of all its peers together, if there are enough streams for a comparison.
const TTFT: Ratio = Ratio::of(
    StepSignal::FirstOutputSeconds,
    StepSignal::FirstOutputs,
    3.0,
);
/// Routing has a reason to avoid a backend if the TTFT of the backend is at least `SLOW_FACTOR` times the TTFT
/// of its peers, and at least `SLOW_SECONDS` longer. Different prompts and caches explain smaller differences.
const SLOW_FACTOR: f64 = 1.5;
const SLOW_SECONDS: f64 = 0.05;
/// Minimum ratio of the p99 of the times between outputs of the backend to the highest such p99 of a peer.
const SLOW_GAP_FACTOR: f64 = 2.0;

pub(super) const BACKEND_AVOIDED: DiagnosisRule = DiagnosisRule {
    name: "backend_avoided",
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
    needs: &[StepSignal::InFlight, StepSignal::Finished],
    load: LoadDependence::Requests(Ratio::of(
        StepSignal::FirstOutputSeconds,
        StepSignal::FirstOutputs,
        5.0,
    )),
    judge: |evaluation| Ok(judge_backend_avoided(evaluation)),
    ..DiagnosisRule::ENGINE
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
    let long = evaluation.long;
    let short = evaluation.minute;
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
    let share = |measure, share| Evidence::new(measure, share, "ratio", long.seconds());
    let evidence = vec![
        share("share_of_requests", own_share),
        share("share_by_weight", expected),
    ];
    slowness(RuleMatch::new(2, evidence), &long, &others)
}

/// Number of requests that ended in the window or are in flight at its end.
fn requests(window: &StepWindow<'_>) -> f64 {
    window.total(StepSignal::Finished) + window.latest(StepSignal::InFlight).unwrap_or(0.0)
}

fn requests_of_all(windows: &[StepWindow<'_>]) -> f64 {
    windows.iter().map(requests).sum()
}

/// Adds the cause to the match: the kind of latency in which the backend is slower than its peers, with the
/// values of both. `None`: the backend is not slower.
fn slowness(
    found: RuleMatch,
    own: &StepWindow<'_>,
    others: &[StepWindow<'_>],
) -> Option<RuleMatch> {
    let seconds = own.seconds();
    let latency = |measure, value| Evidence::new(measure, value, "s", seconds);
    if let (Some(own), Some(other)) = (TTFT.of_all(&[*own]), TTFT.of_all(others))
        && own >= SLOW_FACTOR * other
        && own >= other + SLOW_SECONDS
    {
        let evidence = vec![
            latency("ttft_mean", own),
            latency("ttft_mean_of_others", other),
        ];
        let cause = "its first tokens take longer than those of the others";
        return Some(found.with(evidence).because(cause));
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
    let cause = "its tokens come at longer intervals than those of the others";
    Some(found.with(evidence).because(cause))
}
