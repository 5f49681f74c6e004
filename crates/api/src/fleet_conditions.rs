//! The conditions of all backends and their reasons. The live page, `tokenweir top` and `tokenweir status` show
//! the condition of each backend, and list the backends with the most urgent condition first.

use super::backend_condition::BackendCondition;
use super::backend_summary::BackendSummary;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use tokenweir_diagnose::{Verdict, VerdictSeverity, is_critical_harm};

/// Minimum number of streams in the last minute for a comparison of TTFTs. With fewer streams, single long
/// prompts determine the mean.
const MIN_STREAMS: u64 = 5;
/// A backend is slow if its TTFT is at least this multiple of the median TTFT of the other backends, and
/// exceeds the median by at least this number of seconds. Smaller differences can come from different prompts
/// and cache contents.
const SLOW_RATIO: f64 = 3.0;
const SLOW_EXCESS_SECONDS: f64 = 0.5;
/// A backend is at a standstill if its oldest request is overdue by at least this number of seconds, and by at
/// least this multiple of the usual TTFT.
const OVERDUE_SECONDS: f64 = 3.0;
const OVERDUE_RATIO: f64 = 10.0;
/// Minimum share of refused requests from which a backend is never at a standstill, because it may need time to
/// refuse.
const REFUSING_SHARE: f64 = 0.2;

/// Sets the condition and the reason of each backend, from the summaries of all backends and the active
/// verdicts.
pub fn set_conditions(backends: &mut [BackendSummary], verdicts: &[Verdict]) {
    let ttfts = TtftsByModel::of(backends);
    for backend in backends {
        let (condition, reason) = judge(backend, &ttfts, verdicts);
        (backend.condition, backend.condition_reason) = (condition, reason);
    }
}

/// The number of backends with each condition, such as `48 ok, 1 down, 1 slow`. Empty: there are no
/// backends.
pub fn condition_counts(backends: &[BackendSummary]) -> String {
    let mut counts: BTreeMap<(BackendCondition, &str), usize> = BTreeMap::new();
    for backend in backends {
        *counts
            .entry((backend.condition, backend.condition_word()))
            .or_default() += 1;
    }
    let is_ok = |entry: &((BackendCondition, &str), usize)| entry.0.0 == BackendCondition::Ok;
    let (ok, others): (Vec<_>, Vec<_>) = counts.into_iter().partition(is_ok);
    let parts = ok
        .iter()
        .chain(&others)
        .map(|((_, word), count)| format!("{count} {word}"));
    parts.collect::<Vec<_>>().join(", ")
}

fn judge(
    backend: &BackendSummary,
    ttfts: &TtftsByModel,
    verdicts: &[Verdict],
) -> (BackendCondition, Option<String>) {
    let own: Vec<&Verdict> = verdicts
        .iter()
        .filter(|verdict| verdict.backend == backend.name)
        .collect();
    if backend.state != "available" {
        return judge_exclusion(backend, &own);
    }
    let named = |name: &str| own.iter().find(|verdict| verdict.verdict == name);
    if let Some(verdict) = named("backend_failing") {
        let reason = failing_reason(backend, verdict);
        return (BackendCondition::Failing, Some(reason));
    }
    // Verdicts about the state of a backend are skipped, because `state` was evaluated above.
    let worst = own
        .iter()
        .filter(|verdict| !verdict.is_about_state())
        .max_by_key(|verdict| verdict.severity);
    let text = |verdict: &Verdict| Some(verdict.cause_or_meaning().to_owned());
    if let Some(verdict) = worst.filter(|verdict| verdict.severity == VerdictSeverity::Critical) {
        return (BackendCondition::Critical, text(verdict));
    }
    if let Some(reason) = ttfts.standstill(backend) {
        return (BackendCondition::Stalled, Some(reason));
    }
    if let Some(reason) = ttfts.excess(backend) {
        return (BackendCondition::Slow, Some(reason));
    }
    let held = own.iter().find(|verdict| verdict.is_held);
    if let Some(verdict) = named("backend_avoided").or(held) {
        return (BackendCondition::Avoided, text(verdict));
    }
    if backend.stalled > 0 {
        let reason = format!("{} of its streams are stalled", backend.stalled);
        return (BackendCondition::Stalled, Some(reason));
    }
    // If a limit of the gateway itself ends requests, their failures show nothing about the backend.
    let is_limited = verdicts
        .iter()
        .any(|verdict| verdict.verdict == "gateway_limit");
    let failing = if is_limited {
        None
    } else {
        failed_attempts(backend)
    };
    if let Some(reason) = failing {
        return (BackendCondition::Failing, Some(reason));
    }
    match worst.filter(|verdict| verdict.severity == VerdictSeverity::Warning) {
        Some(verdict) => (BackendCondition::Warning, text(verdict)),
        None => (BackendCondition::Ok, None),
    }
}

fn failing_reason(backend: &BackendSummary, verdict: &Verdict) -> String {
    let cause = verdict.cause_or_meaning();
    match backend.failed_share {
        Some(share) if share > 0.0 => {
            format!("{:.0} % of its attempts failed; {cause}", 100.0 * share)
        }
        _ => cause.to_owned(),
    }
}

/// Why a backend is failing, judged by its attempts only and not by a verdict. `None`: few of its attempts
/// fail.
fn failed_attempts(backend: &BackendSummary) -> Option<String> {
    let share = backend.failed_share.filter(|share| *share > 0.0)?;
    let attempts = backend.failed_attempts as f64 / share;
    if !is_critical_harm(backend.failed_attempts, attempts.round() as u64) {
        return None;
    }
    let most = backend
        .client_errors
        .iter()
        .max_by_key(|(_, count)| **count);
    let status = most.map_or_else(String::new, |(status, _)| format!(": it answers {status}"));
    let page = if backend.scrape_error.as_deref() == Some("status") {
        ", and its metrics page answers with an error too: perhaps another server listens at its address"
    } else {
        ""
    };
    let percent = 100.0 * share;
    Some(format!(
        "{percent:.0} % of its attempts failed{status}{page}"
    ))
}

/// The condition of a backend whose state is not `available`, and its reason.
fn judge_exclusion(
    backend: &BackendSummary,
    own: &[&Verdict],
) -> (BackendCondition, Option<String>) {
    match backend.state.as_str() {
        "down" => (BackendCondition::Down, backend.reason.clone()),
        "ejected" => {
            let is_cause = |verdict: &&&Verdict| {
                ["backend_failing", "backend_ejected"].contains(&&*verdict.verdict)
            };
            let cause = own.iter().find(is_cause);
            let cause = cause.and_then(|verdict| verdict.cause.as_deref());
            (BackendCondition::Ejected, cause.map(str::to_owned))
        }
        "drained" => {
            let is_harm = |verdict: &&&Verdict| {
                verdict.verdict == "backend_drained" && verdict.severity > VerdictSeverity::Info
            };
            match own.iter().find(is_harm) {
                Some(verdict) => (
                    BackendCondition::DrainHarms,
                    Some(verdict.cause_or_meaning().to_owned()),
                ),
                None => (BackendCondition::Excluded, None),
            }
        }
        _ => (BackendCondition::Excluded, backend.reason.clone()),
    }
}

/// For each model: the mean TTFTs, in ascending order, of the backends that list this model first.
/// Backends of different models are not compared, because models have different speeds.
struct TtftsByModel(BTreeMap<String, Vec<f64>>);

impl TtftsByModel {
    fn of(backends: &[BackendSummary]) -> Self {
        let mut models: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for backend in backends {
            let model = backend.models.first().cloned().unwrap_or_default();
            models
                .entry(model)
                .or_default()
                .extend(comparable_ttft(backend));
        }
        for ttfts in models.values_mut() {
            ttfts.sort_by(f64::total_cmp);
        }
        Self(models)
    }

    /// The mean TTFTs of the backends whose first listed model is the same as that of this backend.
    fn of_peers(&self, backend: &BackendSummary) -> Option<&Vec<f64>> {
        let model = backend.models.first().map_or("", String::as_str);
        self.0.get(model)
    }

    /// Why the backend seems to be at a standstill. Other backends that list the model first must have output.
    /// `None`: the backend has output, or no other backend has a TTFT.
    fn standstill(&self, backend: &BackendSummary) -> Option<String> {
        let overdue = backend.overdue_seconds;
        let ttfts = self.of_peers(backend)?;
        let usual = *ttfts.get(ttfts.len().checked_sub(1)? / 2)?;
        let refuses = backend
            .client_error_share
            .is_some_and(|share| share >= REFUSING_SHARE);
        let is_found = !refuses && overdue >= OVERDUE_SECONDS && overdue >= OVERDUE_RATIO * usual;
        is_found.then(|| {
            format!("a request has waited {overdue:.0} s too long for its first output; mean TTFT of the backends {usual:.2} s")
        })
    }

    /// Why the backend is slow in comparison with other backends that list the model first. `None`: it is not
    /// slow, or no other TTFT is known.
    fn excess(&self, backend: &BackendSummary) -> Option<String> {
        let own = comparable_ttft(backend)?;
        let ttfts = self.of_peers(backend)?;
        let position = ttfts.partition_point(|ttft| ttft.total_cmp(&own) == Ordering::Less);
        // The lower median ensures that, of two other backends, a slow one does not raise the median.
        let middle = ttfts.len().checked_sub(2)? / 2;
        let median = *ttfts.get(if middle < position {
            middle
        } else {
            middle + 1
        })?;
        (own >= SLOW_RATIO * median && own >= median + SLOW_EXCESS_SECONDS).then(|| {
            format!("mean TTFT of the last minute {own:.2} s, median of the other backends {median:.2} s")
        })
    }
}

/// The mean TTFT of a backend that gets requests. `None`: too few streams ended, or the backend gets no
/// requests. The streams of a drained backend ran before the drain, when the other backends had a different
/// load.
fn comparable_ttft(backend: &BackendSummary) -> Option<f64> {
    if !backend.up || backend.ended_streams < MIN_STREAMS {
        return None;
    }
    backend.ttft_seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BackendFacts;

    fn backend(name: &str, ttft_seconds: f64) -> BackendSummary {
        BackendSummary {
            name: name.into(),
            facts: BackendFacts {
                state: "available".into(),
                up: true,
                ..BackendFacts::default()
            },
            ttft_seconds: Some(ttft_seconds),
            ended_streams: 20,
            ..BackendSummary::default()
        }
    }

    /// A backend that gets no requests because it has the state `state`.
    fn excluded(name: &str, ttft_seconds: f64, state: &str) -> BackendSummary {
        let facts = BackendFacts {
            state: state.into(),
            ..BackendFacts::default()
        };
        BackendSummary {
            facts,
            ..backend(name, ttft_seconds)
        }
    }

    fn verdict(name: &'static str, backend: &str, severity: VerdictSeverity) -> Verdict {
        Verdict {
            verdict: name.into(),
            backend: backend.into(),
            severity,
            ..Verdict::default()
        }
    }

    fn conditions(backends: &mut [BackendSummary], verdicts: &[Verdict]) -> Vec<BackendCondition> {
        set_conditions(backends, verdicts);
        backends.iter().map(|backend| backend.condition).collect()
    }

    #[test]
    fn failed_attempts_without_a_verdict_are_named() {
        let mut fleet = [backend("a", 0.05), backend("b", 0.05)];
        fleet[1].failed_attempts = 24;
        fleet[1].failed_share = Some(0.12);
        fleet[1].client_errors = [(404, 24)].into();
        fleet[1].facts.scrape_error = Some("status".to_owned());
        let expected = [BackendCondition::Ok, BackendCondition::Failing];
        assert_eq!(conditions(&mut fleet, &[]), expected);
        let reason = "12 % of its attempts failed: it answers 404, and its metrics page answers with an error too: perhaps \
                      another server listens at its address";
        assert_eq!(fleet[1].condition_reason.as_deref(), Some(reason));
        fleet[1].failed_attempts = 2;
        assert_eq!(conditions(&mut fleet, &[]), [BackendCondition::Ok; 2]);
    }

    #[test]
    fn slowness_is_relative_to_backends_of_the_model() {
        let ok = BackendCondition::Ok;
        let mut fleet = [backend("a", 0.05), backend("b", 0.06), backend("c", 7.3)];
        assert_eq!(
            conditions(&mut fleet, &[]),
            [ok, ok, BackendCondition::Slow]
        );
        let reason = "mean TTFT of the last minute 7.30 s, median of the other backends 0.05 s";
        assert_eq!(fleet[2].condition_reason.as_deref(), Some(reason));
        fleet[2].facts.models = vec!["large".into()];
        assert_eq!(conditions(&mut fleet, &[]), [ok; 3]);
        fleet[2] = BackendSummary {
            ended_streams: 2,
            ..backend("c", 7.3)
        };
        assert_eq!(
            conditions(&mut fleet, &[]),
            [ok; 3],
            "two streams are no comparison"
        );
        let mut small = [backend("a", 0.01), backend("b", 0.09)];
        assert_eq!(conditions(&mut small, &[]), [ok; 2], "80 ms are no harm");
        assert_eq!(conditions(&mut [backend("alone", 30.0)], &[]), [ok]);
        let mut two = [backend("a", 0.05), backend("b", 2.0), backend("c", 2.1)];
        let slow = BackendCondition::Slow;
        assert_eq!(conditions(&mut two, &[]), [ok, slow, slow]);
        let mut one = [excluded("a", 0.05, "drained"), backend("b", 2.0)];
        assert_eq!(conditions(&mut one, &[]), [BackendCondition::Excluded, ok]);
    }

    #[test]
    fn an_overdue_request_beside_peers_is_a_standstill() {
        let silent = |overdue_seconds| {
            let mut silent = backend("c", 0.05);
            silent.ended_streams = 0;
            silent.facts.overdue_seconds = overdue_seconds;
            silent
        };
        let ok = BackendCondition::Ok;
        let mut fleet = [backend("a", 0.05), backend("b", 0.06), silent(3.5)];
        let expected = [ok, ok, BackendCondition::Stalled];
        assert_eq!(conditions(&mut fleet, &[]), expected);
        fleet[2] = silent(2.0);
        assert_eq!(conditions(&mut fleet, &[]), [ok; 3]);
        let mut slow = [backend("a", 0.5), silent(3.5)];
        assert_eq!(conditions(&mut slow, &[]), [ok; 2], "all are slow");
        assert_eq!(conditions(&mut [silent(9.0)], &[]), [ok], "no peers");
    }

    #[test]
    fn a_drain_needs_attention_while_it_harms_clients() {
        let drained = || excluded("a", 0.1, "drained");
        let info = verdict("backend_drained", "a", VerdictSeverity::Info);
        assert_eq!(
            conditions(&mut [drained()], &[info]),
            [BackendCondition::Excluded]
        );
        let harm = verdict("backend_drained", "a", VerdictSeverity::Critical);
        assert_eq!(
            conditions(&mut [drained()], &[harm]),
            [BackendCondition::DrainHarms]
        );
    }

    #[test]
    fn failures_and_verdicts_concern_their_own_backend() {
        let failing = verdict("backend_failing", "a", VerdictSeverity::Warning);
        let failing = Verdict {
            cause: Some("it cuts its responses".into()),
            ..failing
        };
        let mut one = [BackendSummary {
            failed_share: Some(0.18),
            ..backend("a", 0.1)
        }];
        assert_eq!(
            conditions(&mut one, &[failing]),
            [BackendCondition::Failing]
        );
        let reason = "18 % of its attempts failed; it cuts its responses";
        assert_eq!(one[0].condition_reason.as_deref(), Some(reason));
        let avoided = verdict("backend_avoided", "a", VerdictSeverity::Warning);
        let held = verdict("front_end_gap", "a", VerdictSeverity::Warning);
        for verdict in [
            avoided,
            Verdict {
                is_held: true,
                ..held
            },
        ] {
            assert_eq!(
                conditions(&mut [backend("a", 0.1)], &[verdict]),
                [BackendCondition::Avoided]
            );
        }
        let verdicts = [verdict("kv_thrashing", "b", VerdictSeverity::Critical)];
        let mut fleet = [backend("a", 0.1), backend("b", 0.1)];
        let expected = [BackendCondition::Ok, BackendCondition::Critical];
        assert_eq!(conditions(&mut fleet, &verdicts), expected);
        let imbalance = verdict("imbalance", "a", VerdictSeverity::Warning);
        let expected = [BackendCondition::Warning, BackendCondition::Ok];
        assert_eq!(conditions(&mut fleet, &[imbalance]), expected);
    }

    #[test]
    fn counts_begin_with_ok_then_the_most_urgent() {
        let mut fleet: Vec<BackendSummary> = (0..48)
            .map(|number| backend(&format!("gpu-{number}"), 0.1))
            .collect();
        fleet.push(backend("slow", 5.0));
        fleet.extend(["down", "asleep"].map(|state| excluded(state, 0.1, state)));
        set_conditions(&mut fleet, &[]);
        assert_eq!(condition_counts(&fleet), "48 ok, 1 down, 1 slow, 1 asleep");
        assert_eq!(condition_counts(&[]), "");
    }
}
