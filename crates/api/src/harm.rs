//! The harm to clients: the shares of requests that failed, were refused or were slow, and a level of severity
//! for each share. The levels determine the state of the gateway, the colours of the live page and of
//! `tokenweir top`, and the exit code of `tokenweir status`.

use super::{LastMinute, ObjectiveMinute};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;
use tokenweir_diagnose::{is_critical_harm, is_fault_of_servers};
use tokenweir_protocol::named_enum;

/// The severity of a share of requests that failed, were refused or were slow.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum HarmLevel {
    /// No request was harmed, or too few for an operator to act.
    #[default]
    None,
    /// More than [`WARNING_SHARE`] of all requests were harmed.
    Warning,
    /// At least five requests were harmed, and significantly more than 5 % of all requests.
    /// [`is_critical_harm`] defines it.
    Critical,
}

named_enum! {
    /// The kind of harm that a client suffered.
    pub enum HarmKind {
        /// The backend failed, or the gateway shut down.
        Failed = "failed",
        /// The answer contains no text and no tool call.
        Empty = "empty",
        /// The text of the answer consists of replacement or control characters.
        Damaged = "damaged",
        /// The answer ended for lack of tokens, before the limit that the client requested.
        Truncated = "truncated",
        /// The client gave up waiting.
        ClientTimeout = "client_timeout",
        /// The client disconnected while output was flowing.
        CutOff = "cut_off",
        /// The gateway refused the request with 429 or 503.
        Refused = "refused",
        /// The request was answered with another 4xx status.
        Rejected = "rejected",
        /// The request exceeded a limit of the configuration section `slow`.
        Slow = "slow",
        /// The answer missed an objective.
        Late = "late",
    }
}

document! {
    /// The share of requests with one kind of harm, and the level of this share.
    #[derive(Copy)]
    pub struct HarmShare {
        /// The share, from 0 to 1. `None`: there were no requests.
        share: Option<f64>,
        /// The severity of the share.
        level: HarmLevel,
    }

    /// The harm to clients in the last minute.
    pub struct Harm {
        /// The share of requests that failed because of a backend or a shutdown.
        failed: HarmShare,
        /// The share of answers that are not good, and the highest level of their kinds.
        answers: HarmShare,
        /// The share of requests without a usable answer that is no fault of their clients: those that failed, were refused for
        /// lack of capacity, got an empty, damaged or truncated answer, waited too long for their client, or were rejected by a
        /// proxy in front of the engines, by the chat template or for `limits.body`. A critical level is exit code 1 of
        /// `tokenweir status`.
        unusable: HarmShare,
        /// The share of answers without text and without a tool call.
        empty: HarmShare,
        /// The share of answers whose text consists of replacement or control characters.
        damaged: HarmShare,
        /// The share of truncated answers. The level is at most `warning`, and `none` unless the share is significantly more
        /// than 5 %: a few clients without a limit of their own reach the end of the context.
        truncated: HarmShare,
        /// The share of requests whose client disconnected while output was flowing. Only clients with keys
        /// that do this more often than usual count. The level is at most `warning`, because the cause is in
        /// front of the gateway.
        cut_off: HarmShare,
        /// The share of requests whose client gave up waiting.
        client_timeout: HarmShare,
        /// The share of requests that the gateway refused with 429 or 503.
        refused: HarmShare,
        /// The share of requests that a backend refused with 429.
        refused_by_backends: HarmShare,
        /// The 4xx responses that are not refusals. The share counts the responses of the gateway and of backends.
        /// The level is at most `warning`, because the cause is a client or the configuration of a backend.
        /// Responses of backends count for the level. Responses of the gateway count for the level only if they are
        /// significantly more than 5 %, without those for limits that the operator set (429) and for incomplete
        /// requests (408).
        client_errors: HarmShare,
        /// The share of requests that exceeded a limit of the configuration section `slow`. The [`LateStreams`]
        /// count too.
        slow: HarmShare,
        /// The share of requests that waited too long for their first output, which is a part of `slow`.
        slow_first_output: HarmShare,
        /// The share of requests in which the model reasoned too long before its first answer, which is a part of
        /// `slow`.
        slow_first_answer: HarmShare,
        /// The share of requests that were slow after the first output, which is a part of `slow`.
        slow_output: HarmShare,
        /// The highest of the level of `slow` and the levels of the missed objectives.
        slow_level: HarmLevel,
        /// The harm in words, the most severe kind first.
        reasons: Vec<String>,
    }
}

/// Open streams that have waited longer than a limit of the configuration section `slow`. [`LastMinute`] does
/// not contain them, because they have not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LateStreams {
    /// Number of streams without output for longer than `slow.ttft`.
    pub first_output: usize,
    /// Number of streams that have had only reasoning for longer than `slow.first_answer`.
    pub first_answer: usize,
}

/// An operator should look if more than this share of requests failed, was refused or was slow.
pub const WARNING_SHARE: f64 = 0.02;
/// 4xx statuses of the gateway that show no fault: the client did not send its whole request (408), or reached
/// a limit that the operator set (429).
const UNJUDGED_STATUSES: [u16; 2] = [408, 429];
/// The reason of requests to paths that no API has. Scanners send such requests, so they do not count as
/// requests of clients.
const SCANNED: &str = "not_found";
const SCANNED_STATUS: u16 = 404;

/// The reason of requests whose body exceeds `limits.body`. If there are many, the limit is too low for the
/// clients.
const TOO_LARGE: &str = "body_too_large";

/// Minimum number of repeated requests, and then their minimum share, from which repeats are mentioned.
const MIN_REPEATS: u64 = 5;
const REPEATED_SHARE: f64 = 0.1;

impl LastMinute {
    /// The share of requests that repeat an ended request of the same client. `None`: the share is small.
    pub fn repeated_share(&self) -> Option<f64> {
        let share = self.repeats as f64 / self.requests.max(1) as f64;
        (self.repeats >= MIN_REPEATS && share >= REPEATED_SHARE).then_some(share)
    }

    /// The counts of the minute without the requests of scanners.
    pub fn without_scans(&self) -> Self {
        let mut minute = self.clone();
        let scans = minute
            .rejected_by_reason
            .remove(SCANNED)
            .unwrap_or_default();
        minute.requests = minute.requests.saturating_sub(scans);
        if let Some(count) = minute.gateway_client_errors.get_mut(&SCANNED_STATUS) {
            *count = count.saturating_sub(scans);
        }
        minute
    }
}

impl Harm {
    /// The harm of the last minute and of the open streams.
    pub fn of(minute: &LastMinute, late: LateStreams) -> Self {
        let minute = &minute.without_scans();
        let LateStreams {
            first_output,
            first_answer,
        } = late;
        let [late_output, late_answer] = [first_output as u64, first_answer as u64];
        let late = late_output + late_answer;
        let share = |count| HarmShare::of(count, minute.requests);
        let slow_share = |count| HarmShare::of(count, minute.requests + late);
        let slow: u64 = minute.slow.values().sum();
        let reasoning = minute.slow.get("reasoning").copied().unwrap_or_default();
        let refused_by_backends = minute.backend_client_errors.get(&429);
        let refused_by_backends = refused_by_backends.copied().unwrap_or_default();
        let judged = judged_errors_of_gateway(minute);
        let mut harm = Self {
            failed: share(minute.failed),
            empty: share(minute.answers.empty),
            damaged: share(minute.answers.damaged),
            truncated: share(minute.answers.truncated).warning_if_critical(),
            unusable: share(unusable(minute)),
            cut_off: share(minute.unusual_cut_offs).at_most_warning(),
            client_timeout: share(minute.answers.client_timeout),
            refused: share(minute.refused),
            refused_by_backends: share(refused_by_backends),
            client_errors: client_errors(minute, &judged),
            slow: slow_share(slow + late),
            slow_first_output: slow_share(
                slow.saturating_sub(minute.slow_output + reasoning) + late_output,
            ),
            slow_first_answer: slow_share(reasoning + late_answer),
            slow_output: slow_share(minute.slow_output),
            ..Self::default()
        };
        // The gateway refuses a request on purpose, so even one refused request causes a warning.
        if minute.refused > 0 {
            harm.refused.level = harm.refused.level.max(HarmLevel::Warning);
        }
        harm.judge_minute(minute);
        if judged.level == HarmLevel::Critical {
            let words = judged.words + &common(minute, HarmKind::Rejected);
            harm.reasons.push(words);
        }
        harm
    }

    /// Sets the values that follow from the levels: the levels of slowness and of answers, and the reasons.
    fn judge_minute(&mut self, minute: &LastMinute) {
        let missed: Vec<&ObjectiveMinute> = minute
            .objectives
            .iter()
            .filter(|objective| objective.level() > HarmLevel::None)
            .collect();
        let levels = missed.iter().map(|objective| objective.level());
        self.slow_level = levels.fold(self.slow.level, HarmLevel::max);
        self.answers = HarmShare {
            share: minute.answers.good_share().map(|good| 1.0 - good),
            level: self.level_of_answers(),
        };
        self.reasons = self.describe(minute, &missed);
    }

    /// Whether the gateway or the backends refuse many requests.
    pub fn is_refusing(&self) -> bool {
        self.refused.level == HarmLevel::Critical
            || self.refused_by_backends.level == HarmLevel::Critical
    }

    /// Whether so many clients got no usable answer that requests count as failing.
    pub fn is_failing(&self) -> bool {
        let kinds = [self.failed, self.empty, self.damaged, self.client_timeout];
        kinds.iter().any(|kind| kind.level == HarmLevel::Critical)
    }

    fn level_of_answers(&self) -> HarmLevel {
        let kinds = [
            self.failed,
            self.empty,
            self.damaged,
            self.truncated,
            self.client_timeout,
            self.refused,
            self.client_errors,
        ];
        kinds
            .iter()
            .map(|kind| kind.level)
            .fold(HarmLevel::None, HarmLevel::max)
    }

    fn describe(&self, minute: &LastMinute, missed: &[&ObjectiveMinute]) -> Vec<String> {
        let slow = format!("are slow{}", most(&minute.slow));
        let by_backend = rejected_words(minute);
        let failed = match main_source(minute, minute.failed) {
            Some(source) => format!("fail (most: {source})"),
            None => "fail".to_owned(),
        };
        let gives_up = gives_up(minute);
        let kinds = [
            (self.failed, HarmKind::Failed, &*failed),
            (self.empty, HarmKind::Empty, "get an empty answer"),
            (
                self.damaged,
                HarmKind::Damaged,
                "get an answer of replacement or control characters",
            ),
            (
                self.truncated,
                HarmKind::Truncated,
                "end at a limit of tokens that the client did not set",
            ),
            (self.client_timeout, HarmKind::ClientTimeout, &gives_up),
            (
                self.cut_off,
                HarmKind::CutOff,
                "end because the client disconnects in the middle of the answer, which is unusual for it",
            ),
            (self.refused, HarmKind::Refused, "are refused"),
            (self.slow, HarmKind::Slow, &slow),
            (backend_errors(minute), HarmKind::Rejected, &by_backend),
        ];
        let mut reasons = Vec::new();
        for (harm, kind, words) in kinds {
            if harm.level > HarmLevel::None {
                let share = harm.share.unwrap_or_default();
                reasons.push((harm.level, reason(share, words, &common(minute, kind))));
            }
        }
        let common = common(minute, HarmKind::Late);
        for objective in missed {
            let share = objective.slow as f64 / objective.requests.max(1) as f64;
            let words = format!("miss the objective {}", objective.name);
            reasons.push((objective.level(), reason(share, &words, &common)));
        }
        reasons.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
        reasons.into_iter().map(|(_, words)| words).collect()
    }
}

/// A reason in words. `common`: the property that most of the harmed requests have in common.
fn reason(share: f64, words: &str, common: &str) -> String {
    format!("{:.0} % of requests {words}{common}", percent(share))
}

/// The most frequent key of `counts`, such as ` (most: engine queue)`. Empty: `counts` is empty.
fn most<K: Display>(counts: &BTreeMap<K, u64>) -> String {
    let most = counts.iter().max_by_key(|(_, count)| **count);
    most.map_or_else(String::new, |(word, _)| {
        format!(" (most: {})", word.to_string().replace('_', " "))
    })
}

/// A text that backends reject requests, with the most frequent status and origin.
fn rejected_words(minute: &LastMinute) -> String {
    let errors = &minute.backend_client_errors;
    match main_source(minute, errors.values().sum()) {
        Some(source) => format!("are answered with {source}"),
        None => format!("are answered with 4xx by a backend{}", most(errors)),
    }
}

/// A text that clients gave up waiting, with the time of the wait and whether they repeat requests.
fn gives_up(minute: &LastMinute) -> String {
    let mut words = "end because the client gives up waiting".to_owned();
    if let Some(seconds) = minute.give_up_seconds {
        words = format!("{words}, each after {seconds:.1} s");
    }
    if let Some(share) = minute.repeated_share() {
        let percent = percent(share);
        words = format!("{words}; {percent:.0} % of all repeat such a request");
    }
    words
}

/// The most frequent status and origin of error responses. `None`: fewer than 80 % of `errors` have the same
/// ones.
fn main_source(minute: &LastMinute, errors: u64) -> Option<&str> {
    let sources = minute.error_sources.iter();
    let (source, count) = sources.max_by_key(|(_, count)| **count)?;
    (5 * count >= 4 * errors && *count <= errors).then_some(source)
}

/// The share of 4xx responses of the gateway and of backends. `judged`: responses of the gateway that show a
/// fault of clients.
fn client_errors(minute: &LastMinute, judged: &GatewayErrors) -> HarmShare {
    let of_gateway: u64 = minute.gateway_client_errors.values().sum();
    let of_backends: u64 = minute.backend_client_errors.values().sum();
    let level_of_gateway = if judged.level == HarmLevel::Critical {
        HarmLevel::Warning
    } else {
        HarmLevel::None
    };
    HarmShare {
        level: backend_errors(minute).level.max(level_of_gateway),
        ..HarmShare::of(of_gateway + of_backends, minute.requests)
    }
}

/// Number of requests without a usable answer that is no fault of their clients.
fn unusable(minute: &LastMinute) -> u64 {
    let answers = &minute.answers;
    let sources = minute.error_sources.iter();
    // Responses with other statuses count as failures.
    let rejected =
        sources.filter(|(source, _)| source.starts_with('4') && is_fault_of_servers(source));
    let rejected: u64 = rejected.map(|(_, count)| *count).sum();
    let damaged = answers.empty + answers.damaged + answers.truncated;
    let too_large = minute.rejected_by_reason.get(TOO_LARGE).unwrap_or(&0);
    minute.failed + minute.refused + damaged + answers.client_timeout + rejected + too_large
}

/// The share of requests that a backend answered with 4xx.
fn backend_errors(minute: &LastMinute) -> HarmShare {
    let errors = minute.backend_client_errors.values().sum();
    HarmShare::of(errors, minute.requests).at_most_warning()
}

impl HarmShare {
    fn of(count: u64, requests: u64) -> Self {
        let share = (requests > 0).then(|| count as f64 / requests as f64);
        let level = match share {
            Some(_) if is_critical_harm(count, requests) => HarmLevel::Critical,
            Some(share) if share > WARNING_SHARE => HarmLevel::Warning,
            _ => HarmLevel::None,
        };
        Self { share, level }
    }

    /// This share with the level `warning` instead of `critical`, and `none` instead of `warning`.
    fn warning_if_critical(self) -> Self {
        let level = match self.level {
            HarmLevel::Critical => HarmLevel::Warning,
            HarmLevel::Warning | HarmLevel::None => HarmLevel::None,
        };
        Self { level, ..self }
    }

    /// Returns this share with a level of at most `warning`.
    fn at_most_warning(self) -> Self {
        Self {
            level: self.level.min(HarmLevel::Warning),
            ..self
        }
    }
}

/// The property that most of the requests with this harm have in common, such as `, all 43 of tenant web, key
/// k`. Empty: they have no common property.
fn common(minute: &LastMinute, kind: HarmKind) -> String {
    let words = minute.common.get(kind.as_str());
    words.map_or_else(String::new, |words| format!(", {words}"))
}

impl ObjectiveMinute {
    /// The harm level of the requests that were too slow for the objective. The level is [`HarmLevel::None`] if
    /// the objective allows their share.
    pub fn level(&self) -> HarmLevel {
        let HarmShare { share, level } = HarmShare::of(self.slow, self.requests);
        if share.unwrap_or_default() > 1.0 - self.target {
            level
        } else {
            HarmLevel::None
        }
    }
}

/// The 4xx responses of the gateway that show a fault of clients.
struct GatewayErrors {
    level: HarmLevel,
    /// The share of the responses, their most frequent status and their most frequent reason.
    words: String,
}

fn judged_errors_of_gateway(minute: &LastMinute) -> GatewayErrors {
    let mut judged = minute.gateway_client_errors.clone();
    judged.retain(|status, _| !UNJUDGED_STATUSES.contains(status));
    let HarmShare { share, level } = HarmShare::of(judged.values().sum(), minute.requests);
    let percent = percent(share.unwrap_or_default());
    let most = judged.iter().max_by_key(|(_, count)| **count);
    let most = most.map_or(0, |(status, _)| *status);
    let reasons = minute.rejected_by_reason.iter();
    let reason = reasons.max_by_key(|(_, count)| **count);
    let reason = reason.map_or_else(String::new, |(reason, _)| {
        format!(" {}", reason.replace('_', " "))
    });
    let words = format!(
        "{percent:.0} % of requests are answered with 4xx by the gateway (most: {most}{reason})"
    );
    GatewayErrors { level, words }
}

/// Converts a share into percent. A share above zero becomes at least 1.
pub(crate) fn percent(share: f64) -> f64 {
    if share > 0.0 {
        (100.0 * share).max(1.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AnswerCounts;

    fn minute(requests: u64, failed: u64, refused: u64) -> LastMinute {
        LastMinute {
            requests,
            failed,
            refused,
            ..LastMinute::default()
        }
    }

    #[test]
    fn failures_significantly_above_5_percent_are_critical() {
        use HarmLevel::{Critical, None, Warning};
        for (requests, failed, expected) in [
            (0, 0, None),
            (1_000, 20, None),
            (1_000, 21, Warning),
            (1_000, 60, Warning),
            (1_000, 70, Critical),
            // A minute with two requests per second has 120 requests.
            (120, 7, Warning),
            (120, 13, Critical),
            (60, 5, Warning),
            (40, 7, Critical),
            (6, 3, Warning),
            (5, 5, Critical),
            (3, 3, Warning),
        ] {
            let harm = Harm::of(&minute(requests, failed, 0), LateStreams::default());
            assert_eq!(harm.failed.level, expected, "{failed} of {requests}");
            assert_eq!(
                harm.reasons.is_empty(),
                expected == None,
                "{failed} of {requests}"
            );
        }
        let refused = Harm::of(&minute(1_000, 0, 1), LateStreams::default());
        assert_eq!(refused.reasons, ["1 % of requests are refused"]);
    }

    #[test]
    fn late_open_streams_count_as_slow() {
        let slow = [("engine_queue", 5), ("reasoning", 1), ("stalled", 2)];
        let slow = slow.map(|(cause, count)| (cause.to_owned(), count)).into();
        let minute = LastMinute {
            slow,
            slow_output: 2,
            ..minute(90, 0, 0)
        };
        let harm = Harm::of(
            &minute,
            LateStreams {
                first_output: 8,
                first_answer: 2,
            },
        );
        assert_eq!(
            harm.slow,
            HarmShare {
                share: Some(0.18),
                level: HarmLevel::Critical
            }
        );
        assert_eq!(harm.slow_first_output.share, Some(0.13));
        assert_eq!(harm.slow_first_answer.share, Some(0.03));
        assert_eq!(harm.slow_output.level, HarmLevel::None);
        assert_eq!(
            harm.reasons,
            ["18 % of requests are slow (most: engine queue)"]
        );
    }

    #[test]
    fn an_objective_is_missed_above_its_target() {
        let objective = |target, slow| LastMinute {
            objectives: vec![ObjectiveMinute {
                name: "chat".into(),
                target,
                requests: 100,
                slow,
            }],
            ..minute(100, 0, 0)
        };
        for (target, slow, expected) in [
            (0.99, 4, HarmLevel::Warning),
            (0.99, 6, HarmLevel::Warning),
            (0.99, 11, HarmLevel::Critical),
            (0.9, 9, HarmLevel::None),
            (0.9, 11, HarmLevel::Critical),
        ] {
            let harm = Harm::of(&objective(target, slow), LateStreams::default());
            assert_eq!(harm.slow_level, expected, "{target} {slow}");
        }
        let reasons = Harm::of(&objective(0.9, 11), LateStreams::default()).reasons;
        assert_eq!(reasons, ["11 % of requests miss the objective chat"]);
    }

    #[test]
    fn only_client_errors_of_backends_are_a_warning() {
        let minute = LastMinute {
            gateway_client_errors: BTreeMap::from([(429, 80)]),
            backend_client_errors: BTreeMap::from([(401, 12), (404, 2)]),
            ..minute(100, 0, 0)
        };
        let harm = Harm::of(&minute, LateStreams::default());
        assert_eq!(
            harm.client_errors,
            HarmShare {
                share: Some(0.94),
                level: HarmLevel::Warning
            }
        );
        let reason = "14 % of requests are answered with 4xx by a backend (most: 401)";
        assert_eq!(harm.reasons, [reason]);
    }

    #[test]
    fn many_client_errors_of_the_gateway_warn() {
        let of = |status, count| {
            let common = ("rejected", "22 of 24 of tenant etl, key k");
            let minute = LastMinute {
                common: [(common.0.to_owned(), common.1.to_owned())].into(),
                gateway_client_errors: BTreeMap::from([(status, count)]),
                ..minute(100, 0, 0)
            };
            Harm::of(&minute, LateStreams::default())
        };
        let harm = of(404, 24);
        let reason = "24 % of requests are answered with 4xx by the gateway (most: 404), 22 of 24 of tenant etl, key k";
        assert_eq!(harm.reasons, [reason]);
        assert_eq!(harm.answers.level, HarmLevel::Warning);
        for (status, count) in [(404, 6), (408, 90), (429, 90)] {
            assert!(of(status, count).reasons.is_empty(), "{count} {status}");
        }
    }

    #[test]
    fn scanned_paths_are_no_requests() {
        let minute = LastMinute {
            gateway_client_errors: BTreeMap::from([(404, 900)]),
            rejected_by_reason: [("not_found".to_owned(), 900)].into(),
            ..minute(1_000, 12, 0)
        };
        let harm = Harm::of(&minute, LateStreams::default());
        assert_eq!(harm.client_errors.level, HarmLevel::None);
        assert_eq!(harm.reasons, ["12 % of requests fail"]);
    }

    #[test]
    fn error_pages_do_not_come_from_the_engine() {
        let page = "413 by a proxy in front of the engines (server: nginx), not by an engine";
        let minute = LastMinute {
            backend_client_errors: BTreeMap::from([(413, 40)]),
            error_sources: [(page.to_owned(), 40)].into(),
            ..minute(100, 0, 0)
        };
        let harm = Harm::of(&minute, LateStreams::default());
        let expected = format!("40 % of requests are answered with {page}");
        assert_eq!(harm.reasons, [expected]);
    }

    #[test]
    fn answers_truncated_below_the_clients_limit_are_harm() {
        let of = |truncated| {
            let answers = AnswerCounts {
                total: 100,
                truncated,
                ..AnswerCounts::default()
            };
            let minute = LastMinute {
                answers,
                ..minute(100, 0, 0)
            };
            Harm::of(&minute, LateStreams::default())
        };
        assert_eq!(of(6).truncated.level, HarmLevel::None);
        let harm = of(89);
        assert_eq!(harm.answers.level, HarmLevel::Warning);
        assert_eq!(harm.unusable.level, HarmLevel::Critical);
        let reason = "89 % of requests end at a limit of tokens that the client did not set";
        assert_eq!(harm.reasons, [reason]);
    }

    #[test]
    fn clients_own_errors_leave_answers_usable() {
        let of = |source: &str| {
            let minute = LastMinute {
                backend_client_errors: BTreeMap::from([(400, 40)]),
                error_sources: [(format!("400 {source}"), 40)].into(),
                ..minute(100, 0, 0)
            };
            Harm::of(&minute, LateStreams::default()).unusable.level
        };
        let proxy = "by a proxy in front of the engines, not by an engine";
        assert_eq!(of(proxy), HarmLevel::Critical);
        let template = "by engines: the chat template, tokenizer or tool parser";
        assert_eq!(of(template), HarmLevel::Critical);
        let context = "by engines: the prompt is longer than the context";
        assert_eq!(of(context), HarmLevel::None);
        let of_gateway = |reason: &str| {
            let minute = LastMinute {
                rejected_by_reason: [(reason.to_owned(), 40)].into(),
                ..minute(100, 0, 0)
            };
            Harm::of(&minute, LateStreams::default()).unusable.level
        };
        assert_eq!(of_gateway(TOO_LARGE), HarmLevel::Critical);
        assert_eq!(of_gateway("unknown_model"), HarmLevel::None);
    }

    #[test]
    fn unusual_cut_offs_are_a_warning() {
        let minute = LastMinute {
            unusual_cut_offs: 40,
            common: [(
                "cut_off".to_owned(),
                "all 40 of tenant web, key k".to_owned(),
            )]
            .into(),
            ..minute(100, 0, 0)
        };
        let harm = Harm::of(&minute, LateStreams::default());
        assert_eq!(harm.cut_off.level, HarmLevel::Warning);
        let reason = "40 % of requests end because the client disconnects in the middle of the answer, which is \
                      unusual for it, all 40 of tenant web, key k";
        assert_eq!(harm.reasons, [reason]);
    }

    #[test]
    fn empty_answers_and_lost_patience_are_failures() {
        let answers = AnswerCounts {
            total: 100,
            good: 30,
            empty: 5,
            client_timeout: 60,
            truncated: 5,
            ..AnswerCounts::default()
        };
        let minute = LastMinute {
            answers,
            ..minute(100, 0, 0)
        };
        let harm = Harm::of(&minute, LateStreams::default());
        assert!(harm.is_failing());
        assert!(
            harm.answers
                .share
                .is_some_and(|share| (share - 0.7).abs() < 1e-9)
        );
        let expected = [
            "60 % of requests end because the client gives up waiting",
            "5 % of requests get an empty answer",
        ];
        assert_eq!(harm.reasons, expected);
    }
}
