//! What the client of a request got.

use crate::record::{Outcome, RequestRecord, Termination, UsageSource};
use crate::slo::{Objective, ObjectiveResult};
use std::time::Duration;
use tokenweir_protocol::named_enum;
use tokenweir_protocol::openai::{Api, FinishReason};

named_enum! {
    /// What the client of an inference request got.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Answer {
        /// A whole answer that is not empty, and in time for all objectives.
        Good = "good",
        /// An error, a part of an answer or none: the backend failed, or the gateway shut down.
        Failed = "failed",
        /// A complete response with neither text nor a tool call outside of reasoning.
        Empty = "empty",
        /// An answer that ended for lack of tokens before the limit that the client asked for.
        Truncated = "truncated",
        /// The client gave up after a wait of a second or more.
        ClientTimeout = "client_timeout",
        /// 429 or 503, because of lacking capacity or of a limit.
        Refused = "refused",
        /// Another status of 4xx.
        Rejected = "rejected",
        /// A good answer that missed an objective.
        Late = "late",
        /// The client ended the request itself, without having waited.
        Cancelled = "cancelled",
    }
}

/// A client that leaves after a shorter time without output cancels the request. A longer wait made it give
/// up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);
const STATUS_SWITCHING_PROTOCOLS: u16 = 101;
const STATUS_REQUEST_TIMEOUT: u16 = 408;

impl Answer {
    /// The class of a finished request. `None`: the request is no inference request, or is a WebSocket.
    pub fn of(record: &RequestRecord, objectives: &[Objective]) -> Option<Self> {
        if record.api.is_none() || record.status == Some(STATUS_SWITCHING_PROTOCOLS) {
            return None;
        }
        Some(match record.outcome {
            Outcome::Ok => Self::of_response(record, objectives),
            Outcome::Cancelled if has_given_up(record) => Self::ClientTimeout,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::Rejected => Self::Refused,
            Outcome::ClientError => Self::of_client_error(record),
            Outcome::UpstreamError
            | Outcome::StreamError
            | Outcome::Truncated
            | Outcome::Aborted
            | Outcome::Timeout
            | Outcome::Shutdown => Self::Failed,
        })
    }

    fn of_response(record: &RequestRecord, objectives: &[Objective]) -> Self {
        let is_late = |objective: &Objective| objective.judge(record) == ObjectiveResult::Bad;
        if is_truncated(record) {
            Self::Truncated
        } else if is_empty(record) {
            Self::Empty
        } else if objectives.iter().any(is_late) {
            Self::Late
        } else {
            Self::Good
        }
    }

    fn of_client_error(record: &RequestRecord) -> Self {
        match record.status {
            Some(429 | 503) => Self::Refused,
            // The client did not send its whole request.
            Some(STATUS_REQUEST_TIMEOUT) if record.refusal.is_some() => Self::Cancelled,
            _ => Self::Rejected,
        }
    }
}

/// Whether the response lacks an answer. The model of a text completion may have nothing to add, so an empty
/// one is an answer.
fn is_empty(record: &RequestRecord) -> bool {
    let is_cut = record
        .observed
        .finish_reasons
        .contains(&Some(FinishReason::Length));
    record.is_empty_response() && !is_cut && record.api != Some(Api::Completions)
}

/// Whether the engine ended the answer for lack of tokens, although the client asked for more. The limit of the
/// client itself truncates nothing.
fn is_truncated(record: &RequestRecord) -> bool {
    let observed = &*record.observed;
    if observed.finish_reasons[..] != [Some(FinishReason::Length)] {
        return false;
    }
    let Some(limit) = record.options.max_tokens else {
        // A text completion without a limit has one of 16 tokens.
        return record.api != Some(Api::Completions);
    };
    let is_counted = observed.usage_source == UsageSource::Exact;
    is_counted && observed.usage.output.is_some_and(|output| output < limit)
}

/// Whether the client left after a wait: before any output, or in a pause of the output.
fn has_given_up(record: &RequestRecord) -> bool {
    let timings = &record.timings;
    let is_receiving = !record.observed.is_stream && record.bytes_out > 0;
    if record.end != Termination::ClientDisconnected || is_receiving {
        return false;
    }
    let since = timings.last_output.or(timings.received);
    let (Some(since), Some(ended)) = (since, timings.ended) else {
        return false;
    };
    // While the client does not read, no output is seen.
    let pause = ended
        .saturating_duration_since(since)
        .saturating_sub(record.observed.write_stall);
    pause >= GIVEN_UP_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fixtures::streamed;
    use std::time::Instant;

    fn class(change: impl FnOnce(&mut RequestRecord)) -> Option<&'static str> {
        let mut record = streamed();
        record.observed.has_answer = true;
        change(&mut record);
        Answer::of(&record, &[]).map(Answer::as_str)
    }

    fn after(record: &RequestRecord, millis: u64) -> Instant {
        record.timings.accepted + Duration::from_millis(millis)
    }

    #[test]
    fn whole_answers_are_good_and_others_not_judged() {
        assert_eq!(class(|_| ()), Some("good"));
        assert_eq!(class(|record| record.api = None), None);
        assert_eq!(class(|record| record.status = Some(101)), None);
    }

    #[test]
    fn each_outcome_has_a_class() {
        for (outcome, expected) in [
            (Outcome::UpstreamError, "failed"),
            (Outcome::StreamError, "failed"),
            (Outcome::Truncated, "failed"),
            (Outcome::Timeout, "failed"),
            (Outcome::Shutdown, "failed"),
            (Outcome::Rejected, "refused"),
        ] {
            assert_eq!(class(|record| record.outcome = outcome), Some(expected));
        }
    }

    #[test]
    fn statuses_tell_refused_from_rejected() {
        let of = |status, refusal| {
            class(|record| {
                record.outcome = Outcome::ClientError;
                record.status = Some(status);
                record.refusal = refusal;
            })
        };
        assert_eq!(of(404, Some("unknown_model")), Some("rejected"));
        assert_eq!(of(400, None), Some("rejected"));
        assert_eq!(of(429, Some("limit")), Some("refused"));
        assert_eq!(of(408, Some("slow_request")), Some("cancelled"));
    }

    #[test]
    fn no_text_is_empty_except_in_completions() {
        let of = |api| {
            class(|record| {
                record.observed.has_answer = false;
                record.api = Some(api);
            })
        };
        assert_eq!(of(Api::Chat), Some("empty"));
        assert_eq!(of(Api::Completions), Some("good"));
    }

    #[test]
    fn only_the_client_s_own_limit_is_whole() {
        let of = |limit, output, api| {
            class(|record| {
                record.observed.finish_reasons = vec![Some(FinishReason::Length)];
                record.observed.usage.output = Some(output);
                record.options.max_tokens = limit;
                record.api = Some(api);
            })
        };
        assert_eq!(of(Some(64), 64, Api::Chat), Some("good"));
        assert_eq!(of(Some(64), 16, Api::Chat), Some("truncated"));
        assert_eq!(of(None, 900, Api::Chat), Some("truncated"));
        assert_eq!(of(None, 16, Api::Completions), Some("good"));
    }

    #[test]
    fn a_client_that_waited_has_given_up() {
        let left = |change: fn(&mut RequestRecord)| {
            class(|record| {
                record.outcome = Outcome::Cancelled;
                record.end = Termination::ClientDisconnected;
                change(record);
            })
        };
        assert_eq!(left(|_| ()), Some("cancelled"), "output was flowing");
        assert_eq!(
            left(|record| {
                record.timings.last_output = None;
                record.timings.ended = Some(after(record, 1_500));
            }),
            Some("client_timeout")
        );
        assert_eq!(
            left(|record| {
                record.timings.last_output = None;
                record.timings.ended = Some(after(record, 300));
            }),
            Some("cancelled")
        );
        assert_eq!(
            left(|record| record.timings.ended = Some(after(record, 1_600))),
            Some("client_timeout"),
            "the output paused"
        );
        assert_eq!(
            left(|record| {
                record.timings.ended = Some(after(record, 1_600));
                record.observed.write_stall = Duration::from_secs(1);
            }),
            Some("cancelled"),
            "it did not read"
        );
        assert_eq!(
            left(|record| {
                record.timings.received = None;
                record.timings.last_output = None;
                record.timings.ended = Some(after(record, 9_000));
            }),
            Some("cancelled"),
            "it did not send its whole request"
        );
    }
}
