//! The rule about a backend that is not a single engine for this gateway alone: its URL leads to several
//! engines, or other clients send it requests. The metrics of such a backend do not show the effect of this
//! gateway. Therefore this rule takes precedence over rules that recommend flags of the engine.
//!
//! If all backends have the same share of requests that are not from this gateway, another gateway probably
//! sends them. This alone is no fault. It is only mentioned in verdicts that an exchange between the gateways
//! can end.

use crate::history::EVERY;
use crate::rule::prelude::*;
use std::time::Duration;

/// Minimum number of metrics pages from another engine in five minutes.
const MIN_SWITCHES: f64 = 2.0;
/// Maximum age of the last metrics page from another engine.
const SWITCH_WINDOW: Duration = Duration::from_secs(40);
/// Time for which requests of other clients must be in the engine. It is short, so that no other rule
/// recommends a flag of the engine first.
const FOREIGN_WINDOW: Duration = Duration::from_secs(10);
const FOREIGN_STEPS: usize = (FOREIGN_WINDOW.as_secs() / EVERY.as_secs()) as usize;
/// Minimum number of requests of other clients in the engine.
const MIN_FOREIGN: f64 = 3.0;
/// Minimum share of other clients in the requests in the engine. If there are peers, it must also be twice
/// their share, because a second gateway in front of the same backends has the same share everywhere.
const FOREIGN_SHARE: f64 = 0.5;
const FOREIGN_SHARE_WITHOUT_PEERS: f64 = 0.8;
const MAX_SHARE_OF_PEERS: f64 = 0.5;

/// For the requests of another gateway: their minimum share in each engine, and then the maximum difference
/// between two of these shares.
const MIN_COMMON_SHARE: f64 = 0.3;
const MAX_SHARE_DIFFERENCE: f64 = 0.25;
/// The verdicts about problems of gateways that do not know each other's requests: engines compute prefixes
/// that another engine already has, and several gateways choose the same backend at once.
const ENDED_BY_EXCHANGE: [&str; 4] = [
    "prefix_cache_misses",
    "prefill_starvation",
    "gateway_queue",
    "shedding",
];

/// Two backends are the same engine if their pages differ by at most this many steps of progress, and the
/// engine begins at least `MIN_FOREIGN_FACTOR` times the requests that the gateway sends to one of them.
const MAX_STEPS_APART: f64 = 2.0;
const MIN_FOREIGN_FACTOR: f64 = 1.5;
/// Maximum relative difference between the requests that the engine begins and those that the gateway sends to
/// all its addresses.
const MAX_DIFFERENCE: f64 = 0.4;
/// Minimum number of tokens that the engine must generate in a minute for a comparison.
const MIN_GROWTH: f64 = 100.0;

pub(super) const SHARED_BACKEND: DiagnosisRule = DiagnosisRule {
    name: "shared_backend",
    meaning: "The backend is not one engine for this gateway alone, so its metrics do not show what this \
              gateway causes.",
    evidence: "In five minutes two metrics pages, and in the last 40 s one, were those of another engine \
               than the page before: the counters or the start time of an earlier engine returned. Or other backends have \
               the same start time and nearly the same counters, and the engine begins 1.5 times the requests that the \
               gateway sends to it, and about those that it sends to all of them. Or for \
               10 s at least three requests, half of those in the engine and twice the share at the peers \
               (80 % without peers), are not of this gateway; and requests wait in the engine, first tokens \
               or tokens are late, or sequences are preempted.",
    remedy: "The flags of the engine are not the cause.",
    disproof: "The backend has its own URL, and its log has only requests of this gateway.",
    needs: &[StepSignal::Running, StepSignal::Waiting],
    judge: judge_shared_backend,
    ..DiagnosisRule::ENGINE
};

#[expect(clippy::unnecessary_wraps, reason = "other rules lack metrics")]
fn judge_shared_backend(evaluation: &Evaluation<'_>) -> RuleResult {
    let last = evaluation.history.window(SWITCH_WINDOW);
    if evaluation.long.total(StepSignal::EngineSwitches) >= MIN_SWITCHES
        && last.total(StepSignal::EngineSwitches) >= 1.0
    {
        let found = evaluation.found(3, &[WindowMeasure::InFlight]);
        let found = found.because(
            "several engines answer at its URL in turn: the URL is that of a load balancer or of \
             a Kubernetes Service",
        );
        return Ok(Some(found.remedy(
            "Name each engine as a backend of its own, or use discovery (discovery.kubernetes).",
        )));
    }
    if let Some(found) = one_engine(evaluation) {
        return Ok(Some(found));
    }
    let window = evaluation.history.window(FOREIGN_WINDOW);
    // Without a gateway, all requests are those of other clients.
    if !window.has_signal(StepSignal::InFlight) {
        return Ok(None);
    }
    let foreign: Vec<f64> = window.foreign_requests().collect();
    let is_lasting =
        foreign.len() >= FOREIGN_STEPS && foreign.iter().all(|requests| *requests >= MIN_FOREIGN);
    let share = foreign_share(evaluation.history, FOREIGN_WINDOW).unwrap_or(0.0);
    let least = foreign.iter().copied().fold(f64::INFINITY, f64::min);
    let most = foreign.iter().copied().fold(0.0, f64::max);
    let is_lasting = is_lasting && has_other_clients(evaluation, most - least);
    if !is_lasting || !is_unusual(share, evaluation) || !is_busy(evaluation) {
        return Ok(None);
    }
    let measures = [
        WindowMeasure::Running,
        WindowMeasure::Waiting,
        WindowMeasure::InFlight,
    ];
    let found = evaluation.found(2, &measures).because(
        "other clients send it requests, not through this gateway: most of the requests in its \
         engine are theirs",
    );
    Ok(Some(found.remedy(
        "Send the requests of the other clients through the gateway, a batch job with a low \
         class (admission.classes), or give them a backend of their own.",
    )))
}

/// The match for a backend that is the same engine as other backends.
fn one_engine(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let sent = |window: &StepWindow<'_>| window.total(StepSignal::FirstOutputs);
    let begun = |window: &StepWindow<'_>| window.total(StepSignal::FirstTokens);
    let has_others = |window: &StepWindow<'_>| {
        begun(window) >= MIN_FOREIGN && begun(window) >= MIN_FOREIGN_FACTOR * sent(window)
    };
    let others = evaluation.others.iter();
    let same = others.filter(|other| is_same_engine(evaluation.history, other));
    let same = same.map(|other| other.window(RECENT));
    let same: Vec<StepWindow<'_>> = same.filter(has_others).collect();
    let count = same.len();
    let window = evaluation.recent;
    // An engine with several addresses begins the requests that the gateway sends to all of them.
    let to_all = sent(&window) + same.iter().map(sent).sum::<f64>();
    let is_sum = (begun(&window) - to_all).abs() <= MAX_DIFFERENCE * begun(&window);
    if count == 0 || !has_others(&window) || !is_sum {
        return None;
    }
    let measures = [WindowMeasure::InFlight, WindowMeasure::Running];
    let cause = format!(
        "its address and those of {count} other backends lead to the same engine: their pages \
         have the same start time and the same counters"
    );
    let found = evaluation.found(3, &measures).because(cause);
    Some(found.remedy(
        "Correct the addresses: a selector of a Kubernetes Service, DNS, or a port that two \
         names share. No backend and no flag of the engine is missing; the others are not \
         reached.",
    ))
}

/// Whether the last pages of both backends come from the same engine: they have the same start time, and their
/// counters differ by no more than a few seconds of progress.
fn is_same_engine(one: &BackendHistory, other: &BackendHistory) -> bool {
    let (Some(page), Some(of_other)) = (one.last_known_load(), other.last_known_load()) else {
        return false;
    };
    let is_same_start = page.started.is_some() && page.started == of_other.started;
    let window = one.window(FAST);
    let (Some(tokens), Some(of_other), Some(growth)) = (
        page.generation_tokens,
        of_other.generation_tokens,
        window.sum(StepSignal::GenerationTokens),
    ) else {
        return false;
    };
    let of_step = growth / window.len().max(1) as f64;
    is_same_start && growth >= MIN_GROWTH && (tokens - of_other).abs() <= MAX_STEPS_APART * of_step
}

/// The share of the requests in the engine that are not from this gateway, in the last `span`. `None`: the
/// share is unknown, or the engine has no requests.
fn foreign_share(history: &BackendHistory, span: Duration) -> Option<f64> {
    let window = history.window(span);
    let in_engine = window.get(WindowMeasure::Running)? + window.get(WindowMeasure::Waiting)?;
    if in_engine < 1.0 {
        return None;
    }
    let own = window.get(WindowMeasure::InFlight)?;
    Some(((in_engine - own) / in_engine).max(0.0))
}

fn is_unusual(share: f64, evaluation: &Evaluation<'_>) -> bool {
    let peers = evaluation.peers();
    let shares = peers.filter_map(|peer| foreign_share(peer, FOREIGN_WINDOW));
    let mut shares: Vec<f64> = shares.collect();
    shares.sort_by(f64::total_cmp);
    match shares.get(shares.len() / 2) {
        Some(of_peers) => share >= FOREIGN_SHARE && *of_peers <= MAX_SHARE_OF_PEERS * share,
        None => share >= FOREIGN_SHARE_WITHOUT_PEERS,
    }
}

/// If another gateway probably sends requests to all engines, adds this cause to the verdicts that an exchange
/// between gateways can end.
pub(crate) fn name_other_gateways<'a>(
    verdicts: &mut [Verdict],
    up: impl Iterator<Item = &'a BackendHistory>,
) {
    let Some(share) = common_share(up) else {
        return;
    };
    let is_concerned = |verdict: &&mut Verdict| ENDED_BY_EXCHANGE.contains(&&*verdict.verdict);
    for verdict in verdicts.iter_mut().filter(is_concerned) {
        verdict.add_to_cause(&format!(
            "{:.0} % of the requests in all engines are not of this gateway, but probably of \
             another one",
            100.0 * share
        ));
        verdict.remedy = format!(
            "Connect the gateways before these backends (peer_exchange). {}",
            verdict.remedy
        );
    }
}

/// The share of requests in the engines that are not from this gateway, if it is about the same everywhere.
/// `None`: the shares differ, or fewer than two backends have requests.
fn common_share<'a>(up: impl Iterator<Item = &'a BackendHistory>) -> Option<f64> {
    let shares: Vec<f64> = up.filter_map(|it| foreign_share(it, FAST)).collect();
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = shares.iter().copied().fold(0.0, f64::max);
    let is_common = least >= MIN_COMMON_SHARE && most - least <= MAX_SHARE_DIFFERENCE;
    (shares.len() > 1 && is_common).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
}

/// Whether the engine is so busy that its requests delay each other.
fn is_busy(evaluation: &Evaluation<'_>) -> bool {
    evaluation.has_queue()
        || evaluation.minute.total(StepSignal::Preemptions) >= 2.0
        || !evaluation.slow_start_evidence().is_empty()
        || !evaluation.slow_inter_token_evidence().is_empty()
}

/// Whether other clients probably send requests directly to the backend. Their requests end, so the engine
/// processes more requests than this gateway sends, and the number of foreign requests in the engine varies.
/// The number of leaked requests would be almost constant. `variation`: highest minus lowest number of requests
/// in the engine that are not from this gateway.
pub(super) fn has_other_clients(evaluation: &Evaluation<'_>, variation: f64) -> bool {
    let window = evaluation.minute;
    let finished = window.total(StepSignal::Queued);
    let own_finished = window.total(StepSignal::Finished);
    finished > 1.1 * own_finished + MIN_FOREIGN
        || variation > 2.0 * MIN_FOREIGN + 0.1 * own_finished
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{BackendRequestCounts, DiagnosisSample, GatewayObservations};
    use tokenweir_engine::dialect::EngineLoad;
    use tokenweir_protocol::clock;

    /// A minute of samples. `at_step` returns the metrics page and the observations of the gateway for each
    /// step.
    fn minute(at_step: impl Fn(u32) -> (EngineLoad, GatewayObservations)) -> BackendHistory {
        let mut history = BackendHistory::default();
        for step in 0..13 {
            let (page, gateway) = at_step(step);
            let sample = DiagnosisSample {
                is_up: true,
                page: Some(page),
                gateway: Some(gateway),
                ..DiagnosisSample::at(clock::epoch() + EVERY * step)
            };
            history.push(sample, true);
        }
        history
    }

    /// One minute in which the engine has `running` requests, of which `in_flight` are from this gateway.
    fn history(running: f64, in_flight: u32) -> BackendHistory {
        minute(|_| {
            let page = EngineLoad {
                running: Some(running),
                waiting: Some(0.0),
                ..EngineLoad::default()
            };
            let gateway = GatewayObservations {
                in_flight,
                ..GatewayObservations::default()
            };
            (page, gateway)
        })
    }

    fn cause(histories: &[BackendHistory]) -> String {
        let mut verdicts = [Verdict {
            verdict: "gateway_queue".into(),
            ..Verdict::default()
        }];
        name_other_gateways(&mut verdicts, histories.iter());
        let [verdict] = verdicts;
        assert_eq!(
            verdict.cause.is_some(),
            verdict.remedy.contains("peer_exchange")
        );
        verdict.cause.unwrap_or_default().into_owned()
    }

    /// One minute of an engine that started at `started`. In each step it generates 100 tokens for ten
    /// requests, of which this gateway sent `own`.
    fn engine(started: f64, earlier: f64, own: u64) -> BackendHistory {
        minute(|step| {
            let begun = f64::from(10 * step);
            let page = EngineLoad {
                started: Some(started),
                generation_tokens: Some(earlier + 10.0 * begun),
                first_tokens: Some(begun),
                running: Some(2.0),
                waiting: Some(0.0),
                ..EngineLoad::default()
            };
            let counts = BackendRequestCounts {
                first_outputs: own,
                ..BackendRequestCounts::default()
            };
            let gateway = GatewayObservations {
                counts,
                ..GatewayObservations::default()
            };
            (page, gateway)
        })
    }

    #[test]
    fn addresses_of_one_engine_are_named() {
        let is_named = |one: &BackendHistory, other: &BackendHistory| {
            one_engine(&Evaluation::new(one, vec![other])).is_some()
        };
        let engine_of_all = engine(7.0, 5_000.0, 5);
        assert!(is_named(&engine_of_all, &engine(7.0, 5_100.0, 5)));
        assert!(!is_named(&engine_of_all, &engine(8.0, 5_100.0, 5)), "start");
        assert!(
            !is_named(&engine_of_all, &engine(7.0, 9_000.0, 5)),
            "tokens"
        );
        assert!(!is_named(&engine_of_all, &engine(7.0, 5_100.0, 0)), "sum");
        let alone = engine(7.0, 5_000.0, 10);
        assert!(!is_named(&alone, &engine(7.0, 5_100.0, 10)), "no others");
    }

    #[test]
    fn only_a_share_common_to_all_is_named() {
        let expected = "60 % of the requests in all engines are not of this gateway, but probably of another one";
        assert_eq!(cause(&[history(20.0, 9), history(20.0, 7)]), expected);
        let of_others = vec![
            [history(20.0, 5), history(20.0, 18)],
            [history(20.0, 18), history(20.0, 17)],
            [history(20.0, 5), history(0.0, 0)],
        ];
        for histories in &of_others {
            assert_eq!(cause(histories), "");
        }
    }
}
