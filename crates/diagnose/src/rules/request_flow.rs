//! Rules about the flow of requests: unreadable metrics, stalled streams, clients that disconnect,
//! and time that requests lose before they reach the engine.

use super::front_end::{PagePlace, late_pages};
use crate::evaluation::ANOMALY_Z_SCORE;
use crate::harm::HARMED_SHARE;
use crate::history::HistoryStep;
use crate::rule::prelude::*;
use std::time::Duration;
use tokenweir_request::significance::{TimeSpread, is_share_above};

/// Minimum number of steps (samples) without a metrics page in the short window for the rule `blind`.
const MIN_MISSING_STEPS: f64 = 9.0;
/// Minimum number of requests with output that end while no counter of the metrics page changes, for the rule
/// `blind`.
const MIN_UNCOUNTED_REQUESTS: f64 = 5.0;
/// Length of the window in which the rule `blind` tests whether the counters of the metrics page change.
/// Requests must end in at least [`MIN_UNCOUNTED_STEPS`] steps of it, because a page can count a request
/// shortly before the gateway does.
const FROZEN_WINDOW: Duration = Duration::from_secs(30);
const MIN_UNCOUNTED_STEPS: usize = 3;
/// Counters of the metrics page, of which each request changes at least one.
const PAGE_COUNTERS: [StepSignal; 5] = [
    StepSignal::GenerationTokens,
    StepSignal::PromptTokens,
    StepSignal::FirstTokens,
    StepSignal::Queued,
    StepSignal::Gaps,
];
/// Minimum of the usual share of disconnecting clients with which the rule `abort_spike` compares the current
/// share.
const MIN_CANCEL_RATIO: f64 = 0.05;
/// If fewer than `FEW_STREAMS` streams begin in a minute, the rule `stalls` counts the stalls of five minutes.
/// It then needs at least `MIN_STALLS_OF_FEW` stalls, the last of them within `LAST_STALL_WITHIN`.
const FEW_STREAMS: f64 = 5.0;
const MIN_STALLS_OF_FEW: f64 = 5.0;
const LAST_STALL_WITHIN: Duration = Duration::from_mins(2);
/// Number of hanging streams from which their verdict is critical.
const MANY_HANGING: f64 = 3.0;
/// A stream hangs if it has waited for output for at least this multiple of the mean TTFT of the backend, while
/// at least `MIN_SERVED_LATER` streams that began later have had output.
const HANGING_FACTOR: f64 = 20.0;
const MIN_SERVED_LATER: f64 = 10.0;
const MAX_HANGING_SECONDS: f64 = 300.0;
/// Minimum number of stalls for the rule `stalls`. If no stream begins, it is also the minimum number of
/// stalled streams.
const MIN_STALLS: f64 = 3.0;
/// For the rule `stalls`: the minimum time in seconds for which a request is overdue, and its minimum ratio to
/// the TTFT of the peers. Without peers, the time is longer.
const OVERDUE_SECONDS: f64 = 3.0;
const OVERDUE_FACTOR: f64 = 10.0;
const OVERDUE_SECONDS_WITHOUT_PEERS: f64 = 15.0;
pub(super) const BLIND: DiagnosisRule = DiagnosisRule {
    name: "blind",
    meaning: "The metrics of the backend cannot be read, or do not change: the gateway routes by \
              the requests that it has in flight there.",
    evidence: "For 45 s of the last minute, and now, the gateway had no metrics page that it can \
               parse and that is at most 15 s old. Or no counter of the page changed in 30 s, \
               while five requests with output ended.",
    remedy: "Run tokenweir doctor against the backend. Remove --disable-log-stats, or a proxy that \
             hides or caches the page. If the page is slow, give the API server more CPU.",
    disproof: "curl http://BACKEND/metrics shows vllm:num_requests_running within a second.",
    severity: "warning",
    load: LoadDependence::None,
    judge: |evaluation| Ok(judge_blind(evaluation)),
    ..DiagnosisRule::ENGINE
};

pub(super) const STALLS: DiagnosisRule = DiagnosisRule {
    name: "stalls",
    severity: "critical",
    lowest: VerdictSeverity::Critical,
    meaning: "Requests at the backend stall: in the middle of their responses, or before their first output.",
    evidence: "A request at the backend is overdue for 3 s and for ten times the TTFT of its peers (15 s \
               without peers), nothing else there had output meanwhile, and it refused nothing. Or in a minute three streams stalled, at least 5 % of those that began or are in \
               flight, and not all at once. Or two streams, 20 % of those in flight, are stalled. \
               Or three are stalled, and none began for a minute. If fewer than five streams began \
               in a minute: five stalled in five minutes, significantly more than 5 %, and the \
               last one less than two minutes ago. Or a stream has had no output for 20 s and for twenty times the \
               mean TTFT, while ten that began later had theirs (warning; three such streams: critical). A warning, too, if all \
               backends stall and nothing shows why, or if only a canary request is overdue.",
    excluded: "`kv_thrashing` or `decode_starvation` holds; a stream whose client does not read does not count",
    remedy: "Check the log and the GPU of the backend: nvidia-smi, dmesg for Xid errors, a stuck \
             NCCL collective. Set its weight to 0 if it does not recover.",
    disproof: "All stalled streams belong to one client, or the clients do not read their data.",
    pages: true,
    needs: &[
        StepSignal::Stalls,
        StepSignal::Stalled,
        StepSignal::InFlight,
    ],
    load: LoadDependence::Requests(Ratio::of(StepSignal::Stalls, StepSignal::FirstOutputs, 5.0)),
    judge: |evaluation| Ok(judge_stalls(evaluation)),
    ..DiagnosisRule::ENGINE
};

pub(super) const ABORT_SPIKE: DiagnosisRule = DiagnosisRule {
    name: "abort_spike",
    meaning: "Many more clients than usual disconnect before their response is complete.",
    evidence: "In a minute with 20 requests or more, five clients and 10 % disconnected. This is \
               three times usual, and six standard deviations above it; or they left after the same time (within \
               10 %). A usual share below 5 % counts as 5 %. The remedy states the mean time until they disconnected, with its \
               deviation. A small deviation indicates a timeout of the clients.",
    excluded: "`kv_thrashing`, `kv_backlog`, `decode_starvation`, `slow_engine`, \
               `prefill_starvation` or `stalls` holds",
    remedy: "Compare the clients' timeout with the duration of responses. In the access \
             log these requests have termination = client_cancelled.",
    disproof: "A deployment of the clients closes connections at the same time.",
    needs: &[StepSignal::Cancelled, StepSignal::Finished],
    judge: judge_abort_spike,
    ..DiagnosisRule::ENGINE
};

fn judge_blind(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.minute;
    let found = evaluation.found(2, &[WindowMeasure::InFlight]);
    if is_page_frozen(&evaluation.history.window(FROZEN_WINDOW)) {
        return Some(found.because(
            "its metrics page stands still while requests of the gateway end there: a cache or a \
             proxy answers in its place",
        ));
    }
    let steps = window.len() as f64;
    let missing = steps - window.values(StepSignal::Running).count() as f64;
    let is_fresh = window.latest(StepSignal::Running).is_some();
    (missing >= MIN_MISSING_STEPS && !is_fresh).then_some(found)
}

/// Whether no counter of the metrics page changed in the window although requests with output ended.
fn is_page_frozen(window: &StepWindow<'_>) -> bool {
    let growth = PAGE_COUNTERS.iter().filter_map(|it| window.sum(*it));
    let most = growth.reduce(f64::max);
    let is_known =
        window.seconds() >= FROZEN_WINDOW.as_secs_f64() && window.has_signal(StepSignal::Elapsed);
    let requests = window.total(StepSignal::Generated);
    let steps = window.values(StepSignal::Generated);
    let steps = steps.filter(|requests| *requests >= 1.0).count();
    is_known
        && most.is_some_and(|growth| growth < 0.5)
        && requests >= MIN_UNCOUNTED_REQUESTS
        && steps >= MIN_UNCOUNTED_STEPS
}

fn judge_stalls(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.minute;
    let stalls = window.total(StepSignal::Stalls);
    let streams = window.total(StepSignal::FirstOutputs);
    let in_flight = window.get(WindowMeasure::InFlight).unwrap_or(0.0);
    let stalled = window.quantile(StepSignal::Stalled, 0.5).unwrap_or(0.0);
    // A single stalled stream among many streams is no fault of the backend.
    let has_many_stalls = stalls >= MIN_STALLS
        && stalls >= HARMED_SHARE * (streams + in_flight)
        && stalls_repeatedly(&window);
    // If an engine makes no progress, its new requests wait for their first output and do not count as stalled.
    let has_stalled_streams =
        stalled >= 2.0 && stalled >= 0.2 * in_flight || stalled >= MIN_STALLS && streams < 1.0;
    let stalls_few_streams = streams < FEW_STREAMS && stalls_few_streams(evaluation);
    let is_overdue = is_overdue(evaluation, StepSignal::Overdue);
    let recent = evaluation.recent;
    let is_over =
        recent.sum(StepSignal::Stalls) == Some(0.0) && recent.max(StepSignal::Stalled) == Some(0.0);
    let is_found = has_many_stalls || has_stalled_streams;
    if !is_overdue && !stalls_few_streams && (is_over || !is_found) {
        return hanging_streams(evaluation).or_else(|| silent_canary(evaluation));
    }
    let tokens = window.get(WindowMeasure::GenerationRate);
    let is_not_generating = tokens.is_some_and(|rate| rate < 1.0) && in_flight >= 1.0;
    let signals = [
        has_many_stalls || stalls_few_streams,
        is_overdue,
        has_stalled_streams,
        is_not_generating,
        !evaluation.slow_inter_token_evidence().is_empty(),
    ];
    let measures = [
        WindowMeasure::StallsPerStream,
        WindowMeasure::InFlight,
        WindowMeasure::GenerationRate,
        WindowMeasure::GapP99,
    ];
    let signals = signals.iter().filter(|is_present| **is_present).count();
    let found = evaluation.found(signals, &measures);
    if is_overdue && !is_found {
        return Some(found.because(
            "requests there get no first output while its peers answer: the engine stands still, \
             or a proxy in front of it swallows requests",
        ));
    }
    let found = because_of_stalls(found, evaluation, &window);
    Some(if found.origin == Some(Origin::Unknown) {
        found.warning()
    } else {
        found
    })
}

/// Whether streams stalled in more than one step. A single pause that stalls all open streams once, for example
/// of the machine, is no fault.
fn stalls_repeatedly(window: &StepWindow<'_>) -> bool {
    let has_stalled = |step: &HistoryStep| {
        let values = [StepSignal::Stalls, StepSignal::Stalled].map(|signal| step.get(signal));
        values.into_iter().flatten().reduce(f64::max)
    };
    window.step_fraction_at_least(has_stalled, 1.0) > 1.5 / window.len() as f64
}

/// The match for streams that hang although the backend serves streams that began later.
fn hanging_streams(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    let window = evaluation.minute;
    let hanging = window.latest(StepSignal::Hanging)?;
    let seconds = window.latest(StepSignal::HangingSeconds)?;
    let ttft = window.get(WindowMeasure::Ttft)?;
    let age = Duration::from_secs_f64(seconds.clamp(1.0, MAX_HANGING_SECONDS));
    let since = evaluation.history.window(age);
    let served = since.total(StepSignal::FirstOutputs);
    if hanging < 1.0 || served < MIN_SERVED_LATER || seconds < HANGING_FACTOR * ttft {
        return None;
    }
    let evidence = vec![
        Evidence::new("streams_without_output", hanging, "requests", 0.0),
        Evidence::new("oldest_without_output", seconds, "s", 0.0),
        Evidence::new("served_later", served, "requests", since.seconds()),
    ];
    let found = RuleMatch::new(2, evidence).because(
        "requests there hang without output while many that began later are served: one rank of \
         a data-parallel engine is dead, or these requests block (a grammar of structured \
         output, media to fetch, a KV transfer)",
    );
    let found = found.remedy(
        "tokenweir top lists the oldest streams: compare what they ask for. With data-parallel \
         ranks, look at the engine of each rank, and name each rank as a backend of its own \
         (routing.data_parallel_ranks).",
    );
    Some(if hanging < MANY_HANGING {
        found.warning()
    } else {
        found
    })
}

/// The match for a backend that does not answer a canary request. No client is harmed yet.
fn silent_canary(evaluation: &Evaluation<'_>) -> Option<RuleMatch> {
    if !is_overdue(evaluation, StepSignal::Canary) {
        return None;
    }
    let seconds = evaluation.minute.latest(StepSignal::Canary)?;
    let evidence = vec![Evidence::new("canary_without_output", seconds, "s", 0.0)];
    let found = RuleMatch::new(2, evidence).because(
        "the canary request of the gateway gets no output there, and no client had any \
         meanwhile: the engine stands still, or a proxy in front of it swallows requests",
    );
    Some(found.warning())
}

/// Whether a request waits for its first output far longer than requests at the peers, while no other request
/// at the backend gets output. The signal contains the time of this request.
fn is_overdue(evaluation: &Evaluation<'_>, signal: StepSignal) -> bool {
    if evaluation.recent.total(StepSignal::RefusedAttempts) >= 1.0 {
        // An engine that refuses requests still makes progress.
        return false;
    }
    let overdue = evaluation.minute.latest(signal).unwrap_or(0.0);
    let peers = windows(evaluation.peers(), FAST);
    let ttfts = peers
        .iter()
        .filter_map(|peer| peer.get(WindowMeasure::Ttft));
    match ttfts.min_by(f64::total_cmp) {
        Some(ttft) => overdue >= OVERDUE_SECONDS && overdue >= OVERDUE_FACTOR * ttft,
        None => overdue >= OVERDUE_SECONDS_WITHOUT_PEERS,
    }
}

/// Whether a backend with few streams has repeated stalls, in a significant share of its streams.
fn stalls_few_streams(evaluation: &Evaluation<'_>) -> bool {
    let window = evaluation.long;
    let stalls = window.total(StepSignal::Stalls);
    let total = stalls.max(window.total(StepSignal::FirstOutputs));
    let times = window.values(StepSignal::Stalls);
    let times = times.filter(|stalls| *stalls >= 1.0).count();
    let last = evaluation.history.window(LAST_STALL_WITHIN);
    stalls >= MIN_STALLS_OF_FEW
        && times >= 2
        && last.total(StepSignal::Stalls) >= 1.0
        && is_share_above(stalls as u64, total as u64, HARMED_SHARE)
}

/// Adds the cause of stalls to the match. The cause follows from `window`, a window of the backend, and from
/// the windows of the other backends.
fn because_of_stalls(
    found: RuleMatch,
    evaluation: &Evaluation<'_>,
    window: &StepWindow<'_>,
) -> RuleMatch {
    if window.total(StepSignal::Preemptions) >= 1.0 {
        let cause = "its sequences are preempted, because the KV cache is full";
        return found.because(cause).at(Origin::Load);
    }
    match late_pages(evaluation) {
        Some(PagePlace::Everywhere) => {
            return found
                .because(
                    "the network between the gateway and the backends: small pages, which need \
                     no engine, are late at all of them too",
                )
                .at(Origin::Network);
        }
        Some(PagePlace::ThisBackend) => {
            return found
                .because(
                    "the API server of this backend or the path to it, and not its engine: its \
                     metrics page is late too, those of its peers are not",
                )
                .at(Origin::FrontEnd);
        }
        None => {}
    }
    let others = windows(evaluation.others.iter().copied(), FAST);
    let has_stalls = |it: &StepWindow<'_>| it.total(StepSignal::Stalls) >= MIN_STALLS;
    if !others.is_empty() && others.iter().all(has_stalls) {
        let cause = "cannot tell which: the gateway's machine, the network, or the same fault in \
                     all engines";
        return found.because(cause).at(Origin::Unknown);
    }
    let is_metrics_missing = window.values(StepSignal::Running).count() * 2 < window.len();
    let cause = if is_metrics_missing {
        "its metrics cannot be read either: the process is frozen"
    } else {
        "the engine of this backend"
    };
    found.because(cause).at(Origin::Engine)
}

fn judge_abort_spike(evaluation: &Evaluation<'_>) -> RuleResult {
    let window = evaluation.minute;
    let Some(ratio) = window.get(WindowMeasure::CancelRatio) else {
        return Ok(None);
    };
    let cancelled = window.total(StepSignal::Cancelled);
    let is_over = evaluation.recent.sum(StepSignal::Cancelled) == Some(0.0);
    if ratio < 0.1 || cancelled < 5.0 || is_over {
        return Ok(None);
    }
    let times = cancel_times(&window);
    let is_timeout = times.mean >= 1.0 && times.is_equal();
    // Users do not all leave after the same time, so equal times need no usual value for comparison.
    if !is_timeout {
        let Some(usual) = evaluation.baseline(WindowMeasure::CancelRatio) else {
            return Err(vec![
                "its usual share of disconnecting clients, which is known after six minutes",
            ]);
        };
        if !is_far_above(usual.median, ratio, cancelled) {
            return Ok(None);
        }
    }
    let measures = [
        WindowMeasure::CancelRatio,
        WindowMeasure::Ttft,
        WindowMeasure::GapP99,
    ];
    let found = evaluation.found(1 + usize::from(is_timeout), &measures);
    let cause = if is_timeout {
        "a timeout of the clients, or of a proxy in front of the gateway: they disconnect after \
         the same time"
    } else {
        "clients do not wait any longer"
    };
    let remedy = format!(
        "Clients disconnected after {:.1} s on average (standard deviation {:.1} s).",
        times.mean, times.deviation
    );
    Ok(Some(found.because(cause).remedy(remedy)))
}

/// Whether the share of clients that disconnect is far above the usual one. A number of disconnects of at least
/// `count * usual + ANOMALY_Z_SCORE * deviation` occurs by chance less than once in a year.
fn is_far_above(usual: f64, ratio: f64, cancelled: f64) -> bool {
    let usual = usual.max(MIN_CANCEL_RATIO);
    let count = cancelled / ratio;
    let deviation = (count * usual * (1.0 - usual).max(0.01)).sqrt();
    ratio >= 3.0 * usual && cancelled >= count * usual + ANOMALY_Z_SCORE * deviation
}

/// The times after which clients disconnected.
fn cancel_times(window: &StepWindow<'_>) -> TimeSpread {
    let count = window.total(StepSignal::Cancelled).max(1.0);
    TimeSpread::of_means(
        window.total(StepSignal::CancelSeconds) / count,
        window.total(StepSignal::CancelSecondsSquared) / count,
    )
}
