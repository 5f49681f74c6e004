//! Rules about the flow of requests: unreadable metrics, stalled streams, disconnecting clients,
//! and time that is lost before the engine.

use super::rule::DiagnosisRule;
use crate::evaluation::{ANOMALY_Z_SCORE, Evaluation, RuleMatch, RuleOutcome};
use crate::history::{FAST, HistoryStep, StepSignal, StepWindow, WindowMeasure};
use crate::verdict::VerdictSeverity;
use std::time::Duration;

/// Minimum number of steps without a metrics page in the short window for the rule `blind`.
const MIN_MISSING_STEPS: f64 = 9.0;
/// Minimum number of requests with output that ended while no counter of the page moved.
const MIN_UNCOUNTED_REQUESTS: f64 = 5.0;
/// The time in which they ended, and the minimum number of its steps in which one did. A record comes
/// a moment after the page that counts its request.
const FROZEN_WINDOW: Duration = Duration::from_secs(30);
const MIN_UNCOUNTED_STEPS: usize = 3;
/// The counters of which at least one moves with each request.
const PAGE_COUNTERS: [StepSignal; 5] = [
    StepSignal::GenerationTokens,
    StepSignal::PromptTokens,
    StepSignal::FirstTokens,
    StepSignal::Queued,
    StepSignal::Gaps,
];
/// Minimum lag of the front end for the rule `front_end_gap`, in seconds.
const MIN_LAG_SECONDS: f64 = 0.1;
/// Minimum of the usual share of clients that disconnect. A smaller usual share counts as this
/// value.
const MIN_CANCEL_RATIO: f64 = 0.05;
/// Minimum lag of the front end as a share of the TTFT, for the rule `front_end_gap`.
const MIN_LAG_RATIO: f64 = 0.2;

pub(super) const BLIND: DiagnosisRule = DiagnosisRule {
    name: "blind",
    severity: VerdictSeverity::Warning,
    meaning: "The backend is up and its metrics cannot be read or stand still: the gateway routes by its \
              own requests in flight.",
    remedy: "Run tokenweir doctor against it. A healthy backend has a page at /metrics; \
             --disable-log-stats or a proxy in between removes it, and a slow page needs more CPU \
             for the API server.",
    disproof: "curl http://BACKEND/metrics shows vllm:num_requests_running within a second.",
    explained_by: &[],
    needs: &[],
    judge: judge_blind,
};

pub(super) const STALLS: DiagnosisRule = DiagnosisRule {
    name: "stalls",
    severity: VerdictSeverity::Critical,
    meaning: "Streams of the backend stall in the middle of their responses.",
    remedy: "Check the backend's log and GPU: nvidia-smi, dmesg for Xid errors, a stuck \
             collective. Set its weight to 0 if it does not recover.",
    disproof: "All stalled streams belong to one client, or the clients do not read their data.",
    explained_by: &["kv_thrashing", "decode_starvation"],
    needs: &[StepSignal::Stalls, StepSignal::Stalled, StepSignal::InFlight],
    judge: judge_stalls,
};

pub(super) const ABORT_SPIKE: DiagnosisRule = DiagnosisRule {
    name: "abort_spike",
    severity: VerdictSeverity::Warning,
    meaning: "Many more clients than usual disconnect before their response is complete.",
    remedy: "Compare the clients' timeout with the duration of responses, and identify the \
             clients: the access log has each request with termination client_cancelled.",
    disproof: "A deployment of the clients closes connections at the same time.",
    explained_by: &[
        "kv_thrashing",
        "kv_backlog",
        "decode_starvation",
        "slow_engine",
        "prefill_starvation",
        "stalls",
    ],
    needs: &[StepSignal::Cancelled, StepSignal::Finished],
    judge: judge_abort_spike,
};

pub(super) const FRONT_END_GAP: DiagnosisRule = DiagnosisRule {
    name: "front_end_gap",
    severity: VerdictSeverity::Warning,
    meaning: "Requests lose time between the gateway and the engine: in the API server of the \
              backend, or on the network.",
    remedy: "Give the API server more CPU or processes (--api-server-count), and measure the \
             round-trip time from the gateway to the backend.",
    disproof: "Other clients of the backend see the same time to first token as its engine.",
    explained_by: &[],
    needs: &[StepSignal::FirstTokens, StepSignal::FirstOutputs],
    judge: judge_front_end_gap,
};

fn judge_blind(evaluation: &Evaluation<'_>) -> RuleOutcome {
    let window = evaluation.short_window();
    if is_page_frozen(&evaluation.history.window(FROZEN_WINDOW)) {
        let rule_match = RuleMatch::new(2, evaluation.evidence_for_all(&[WindowMeasure::InFlight]));
        return RuleOutcome::Present(rule_match.because(
            "its metrics page stands still while requests of the gateway end there: a cache or a proxy \
             answers in its place",
        ));
    }
    let steps = window.len() as f64;
    let missing = steps - window.values(StepSignal::Running).count() as f64;
    let is_fresh = window.latest(StepSignal::Running).is_some();
    if missing < MIN_MISSING_STEPS || is_fresh {
        return RuleOutcome::Absent;
    }
    RuleOutcome::Present(RuleMatch::new(2, evaluation.evidence_for_all(&[WindowMeasure::InFlight])))
}

/// Whether no counter of the page moved in the window although requests with output ended.
fn is_page_frozen(window: &StepWindow<'_>) -> bool {
    let growth: Vec<f64> = PAGE_COUNTERS.iter().filter_map(|it| window.sum(*it)).collect();
    let is_known =
        window.seconds() >= FROZEN_WINDOW.as_secs_f64() && window.has_signal(StepSignal::Elapsed);
    let requests = window.sum(StepSignal::Generated).unwrap_or(0.0);
    let steps = window.values(StepSignal::Generated).filter(|requests| *requests >= 1.0).count();
    is_known
        && !growth.is_empty()
        && growth.iter().all(|growth| *growth < 0.5)
        && requests >= MIN_UNCOUNTED_REQUESTS
        && steps >= MIN_UNCOUNTED_STEPS
}

fn judge_stalls(evaluation: &Evaluation<'_>) -> RuleOutcome {
    let window = evaluation.short_window();
    let stalls = window.sum(StepSignal::Stalls).unwrap_or(0.0);
    let streams = window.sum(StepSignal::FirstOutputs).unwrap_or(0.0);
    let in_flight = window.get(WindowMeasure::InFlight).unwrap_or(0.0);
    let stalled = window.quantile(StepSignal::Stalled, 0.5).unwrap_or(0.0);
    // One stalled stream among many streams is no condition, and neither is one pause, for example of
    // the machine, which stalls all open streams once.
    let has_stalled = |step: &HistoryStep| {
        let values = [StepSignal::Stalls, StepSignal::Stalled].map(|signal| step.get(signal));
        values.into_iter().flatten().reduce(f64::max)
    };
    let is_repeated = window.step_fraction_at_least(has_stalled, 1.0) > 1.5 / window.len() as f64;
    let has_many_stalls = stalls >= 3.0 && stalls >= 0.05 * (streams + in_flight) && is_repeated;
    let has_stalled_streams = stalled >= 2.0 && stalled >= 0.2 * in_flight;
    let recent = evaluation.recent_window();
    let is_over =
        recent.sum(StepSignal::Stalls) == Some(0.0) && recent.max(StepSignal::Stalled) == Some(0.0);
    if is_over || !has_many_stalls && !has_stalled_streams {
        return RuleOutcome::Absent;
    }
    let tokens = window.get(WindowMeasure::GenerationRate);
    let is_not_generating = tokens.is_some_and(|rate| rate < 1.0) && in_flight >= 1.0;
    let signals = [
        has_many_stalls,
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
    let rule_match = RuleMatch::new(signals, evaluation.evidence_for_all(&measures));
    RuleOutcome::Present(rule_match.because(stall_cause(evaluation, &window)))
}

/// The cause of the stalls in a window of the backend, if the rule `stalls` applies.
fn stall_cause(evaluation: &Evaluation<'_>, window: &StepWindow<'_>) -> &'static str {
    let stalled_others = evaluation.others.iter().filter(|other| {
        let stalls = other.window(FAST).sum(StepSignal::Stalls);
        stalls.is_some_and(|stalls| stalls >= 3.0)
    });
    let is_everywhere =
        !evaluation.others.is_empty() && stalled_others.count() == evaluation.others.len();
    let is_metrics_missing = window.values(StepSignal::Running).count() * 2 < window.len();
    let is_preempting = window.sum(StepSignal::Preemptions).is_some_and(|count| count >= 1.0);
    if is_preempting {
        "its sequences are preempted, because the KV cache is full"
    } else if is_everywhere {
        "cannot tell which: the gateway's machine, the network, or the same fault in all engines"
    } else if is_metrics_missing {
        "its metrics cannot be read either: the process is frozen"
    } else {
        "the engine of this backend"
    }
}

fn judge_abort_spike(evaluation: &Evaluation<'_>) -> RuleOutcome {
    let window = evaluation.short_window();
    let Some(ratio) = window.get(WindowMeasure::CancelRatio) else { return RuleOutcome::Absent };
    let cancelled = window.sum(StepSignal::Cancelled).unwrap_or(0.0);
    let is_over = evaluation.recent_window().sum(StepSignal::Cancelled) == Some(0.0);
    if ratio < 0.1 || cancelled < 5.0 || is_over {
        return RuleOutcome::Absent;
    }
    let Some(usual) = evaluation.baseline(WindowMeasure::CancelRatio) else {
        return RuleOutcome::Unknown(
            "its usual share of disconnecting clients: it takes five minutes",
        );
    };
    // By chance alone, a number of disconnects above this bound occurs less than once in a year.
    let (usual, count) = (usual.median.max(MIN_CANCEL_RATIO), cancelled / ratio);
    let deviation = (count * usual * (1.0 - usual).max(0.01)).sqrt();
    if ratio < 3.0 * usual || cancelled < count * usual + ANOMALY_Z_SCORE * deviation {
        return RuleOutcome::Absent;
    }
    let mean_seconds =
        window.ratio(StepSignal::CancelSeconds, StepSignal::Cancelled, 1.0).unwrap_or(0.0);
    let mean_square =
        window.ratio(StepSignal::CancelSecondsSquared, StepSignal::Cancelled, 1.0).unwrap_or(0.0);
    let deviation_seconds = (mean_square - mean_seconds * mean_seconds).max(0.0).sqrt();
    let is_timeout = mean_seconds >= 1.0 && deviation_seconds <= 0.1 * mean_seconds;
    let rule_match = RuleMatch::new(
        1 + usize::from(is_timeout),
        evaluation.evidence_for_all(&[
            WindowMeasure::CancelRatio,
            WindowMeasure::Ttft,
            WindowMeasure::GapP99,
        ]),
    );
    let waited = format!(
        "Clients disconnected after {mean_seconds:.1} s on average (standard deviation \
         {deviation_seconds:.1} s)."
    );
    let cause =
        if is_timeout { "a timeout of the clients" } else { "clients do not wait any longer" };
    RuleOutcome::Present(rule_match.because(cause).remedy(Some(waited)))
}

fn judge_front_end_gap(evaluation: &Evaluation<'_>) -> RuleOutcome {
    let window = evaluation.short_window();
    let Some(lag) = window.get(WindowMeasure::FrontEnd) else { return RuleOutcome::Absent };
    let ttft = window.get(WindowMeasure::Ttft).unwrap_or(0.0);
    let is_significant = lag >= MIN_LAG_SECONDS.max(MIN_LAG_RATIO * ttft);
    // A lag of the usual length is attributed to the network, not to the front end.
    let is_new =
        evaluation.baseline(WindowMeasure::FrontEnd).is_none_or(|usual| lag >= 2.0 * usual.median);
    let recent = evaluation.recent_window();
    let is_over = recent
        .ratio(StepSignal::FirstOutputSeconds, StepSignal::FirstOutputs, 5.0)
        .zip(recent.ratio(StepSignal::FirstTokenSeconds, StepSignal::FirstTokens, 5.0))
        .is_some_and(|(gateway, engine)| gateway - engine < MIN_LAG_SECONDS);
    if !is_significant || !is_new || is_over {
        return RuleOutcome::Absent;
    }
    let in_engine = window.get(WindowMeasure::Running).unwrap_or(0.0)
        + window.get(WindowMeasure::Waiting).unwrap_or(0.0);
    let in_flight = window.get(WindowMeasure::InFlight);
    let is_queued_outside = in_flight.is_some_and(|in_flight| in_flight >= in_engine + 1.0);
    let has_risen = evaluation.has_risen(WindowMeasure::FrontEnd, 2.0);
    let signals = 1 + usize::from(is_queued_outside) + usize::from(has_risen);
    let measures = [
        WindowMeasure::FrontEnd,
        WindowMeasure::Ttft,
        WindowMeasure::EngineTtft,
        WindowMeasure::InFlight,
        WindowMeasure::Running,
    ];
    RuleOutcome::Present(RuleMatch::new(signals, evaluation.evidence_for_all(&measures)))
}
