//! Judges the result that the client of a request got.

use crate::record::{
    Answer, ClientIdentity, Outcome, RequestRecord, ShortName, Termination, UsageSource,
};
use crate::slo::{Objective, ObjectiveResult};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::openai::{Api, FinishReason};

/// Judges the results that the clients of finished requests got.
#[derive(Debug, Default)]
pub struct AnswerJudge {
    objectives: Vec<Objective>,
    /// The last answered requests, the oldest first.
    answered: VecDeque<Answered>,
    /// The last requests that clients ended, the oldest first.
    left: VecDeque<Left>,
}

/// A request that its client ended.
#[derive(Debug)]
struct Left {
    prompt: Option<u64>,
    client: Client,
    program: Option<ShortName>,
    took: Duration,
    ended: Option<Instant>,
}

#[derive(Debug)]
struct Answered {
    prompt: u64,
    client: Client,
    accepted: Instant,
    ended: Instant,
}

/// The client of a request: its key or, without a key, its address.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Client {
    Key(Arc<ClientIdentity>),
    Address(IpAddr),
}

/// Number of answered requests that are remembered, to recognize hedged requests.
const MAX_ANSWERED: usize = 256;
/// Minimum wait without output after which a disconnect means that the client stopped waiting. A client that
/// leaves earlier cancels the request.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);
/// A client is considered to have a timeout if this many of its last [`COMPARED`] ended requests took as long
/// as this one, within this relative difference.
const COMPARED: usize = 8;
const MIN_EQUAL: usize = 6;
const EQUAL_PART: f64 = 0.02;
const MIN_TIMEOUT: Duration = Duration::from_millis(500);
/// A client that sends the same prompt again within this time repeats the request that it ended.
const REPEATED_WITHIN: Duration = Duration::from_secs(5);
/// Maximum delay with which the gateway notices that a client ended its request.
const NOTICED_WITHIN: Duration = Duration::from_millis(500);
const STATUS_SWITCHING_PROTOCOLS: u16 = 101;
const STATUS_REQUEST_TIMEOUT: u16 = 408;

impl AnswerJudge {
    /// Creates a judge that compares answers with these objectives.
    pub fn new(objectives: Vec<Objective>) -> Self {
        Self {
            objectives,
            answered: VecDeque::new(),
            left: VecDeque::new(),
        }
    }

    /// Sets the results that the clients of these requests got.
    pub fn judge<'a>(&mut self, records: impl Iterator<Item = &'a mut RequestRecord>) {
        let mut ended_by_clients = Vec::new();
        for record in records {
            record.answer = class_of(record, &self.objectives);
            record.is_repeat = self.repeats(record);
            if record.outcome == Outcome::Ok {
                self.remember(record);
            } else if record.outcome == Outcome::Cancelled {
                ended_by_clients.push(record);
            }
        }
        for record in ended_by_clients {
            if self.has_answered_equal(record) {
                record.is_hedge = true;
                record.answer = record.answer.and(Some(Answer::Cancelled));
                continue;
            }
            if self.has_timeout(record) {
                record.answer = record.answer.and(Some(Answer::ClientTimeout));
            }
            let left = Left {
                prompt: prompt_of(record),
                client: Client::of(record),
                program: record.program,
                took: record.duration(),
                ended: record.timings.ended,
            };
            push_bounded(&mut self.left, left, MAX_ANSWERED);
        }
    }

    /// Whether the client ended its last requests after the same time as this one, which shows a timeout of the
    /// client.
    fn has_timeout(&self, record: &RequestRecord) -> bool {
        let took = record.duration();
        let client = Client::of(record);
        let is_same = |left: &&Left| left.client == client && left.program == record.program;
        let last = self.left.iter().rev().filter(is_same).take(COMPARED);
        let tolerance = took.mul_f64(EQUAL_PART);
        let equal = last.filter(|left| left.took.abs_diff(took) <= tolerance);
        took >= MIN_TIMEOUT && equal.count() >= MIN_EQUAL
    }

    /// Whether the client repeats the prompt of a request that it ended a moment before.
    fn repeats(&self, record: &RequestRecord) -> bool {
        let Some(prompt) = prompt_of(record) else {
            return false;
        };
        let client = Client::of(record);
        let accepted = record.timings.accepted;
        let is_recent = |ended: Instant| {
            ended <= accepted + NOTICED_WITHIN
                && accepted.saturating_duration_since(ended) <= REPEATED_WITHIN
        };
        self.left.iter().rev().any(|left| {
            left.prompt == Some(prompt)
                && left.client == client
                && left.ended.is_some_and(is_recent)
        })
    }

    fn remember(&mut self, record: &RequestRecord) {
        if let (Some(prompt), Some(ended)) = (prompt_of(record), record.timings.ended) {
            let answered = Answered {
                prompt,
                client: Client::of(record),
                accepted: record.timings.accepted,
                ended,
            };
            push_bounded(&mut self.answered, answered, MAX_ANSWERED);
        }
    }

    /// Whether the client got the answer to an equal request while this one was open. Clients send both to use
    /// the first answer (hedged requests).
    fn has_answered_equal(&self, record: &RequestRecord) -> bool {
        let (Some(prompt), Some(ended)) = (prompt_of(record), record.timings.ended) else {
            return false;
        };
        let client = Client::of(record);
        self.answered.iter().any(|answered| {
            let is_meanwhile =
                answered.accepted < ended && answered.ended > record.timings.accepted;
            answered.prompt == prompt && answered.client == client && is_meanwhile
        })
    }
}

impl Client {
    fn of(record: &RequestRecord) -> Self {
        match &record.caller {
            Some(caller) => Self::Key(caller.clone()),
            None => Self::Address(record.client),
        }
    }
}

/// The hash of the whole prompt. `None`: not known.
fn prompt_of(record: &RequestRecord) -> Option<u64> {
    let prompt = record.fingerprint.as_ref()?;
    (prompt.whole != 0).then_some(prompt.whole)
}

/// The class of a finished request. `None`: the request is no inference request, or is a WebSocket.
fn class_of(record: &RequestRecord, objectives: &[Objective]) -> Option<Answer> {
    if record.api.is_none() || record.status == Some(STATUS_SWITCHING_PROTOCOLS) {
        return None;
    }
    Some(match record.outcome {
        Outcome::Ok => class_of_response(record, objectives),
        Outcome::Cancelled if has_given_up(record) => Answer::ClientTimeout,
        Outcome::Cancelled => Answer::Cancelled,
        Outcome::Rejected => Answer::Refused,
        Outcome::ClientError => class_of_client_error(record),
        Outcome::UpstreamError
        | Outcome::StreamError
        | Outcome::Truncated
        | Outcome::Aborted
        | Outcome::Timeout
        | Outcome::Shutdown => Answer::Failed,
    })
}

fn class_of_response(record: &RequestRecord, objectives: &[Objective]) -> Answer {
    let is_late = |objective: &Objective| objective.judge(record) == ObjectiveResult::Bad;
    if is_truncated(record) {
        Answer::Truncated
    } else if is_empty(record) {
        Answer::Empty
    } else if record.is_unreadable() {
        Answer::Damaged
    } else if objectives.iter().any(is_late) {
        Answer::Late
    } else {
        Answer::Good
    }
}

fn class_of_client_error(record: &RequestRecord) -> Answer {
    match record.status {
        Some(429 | 503) => Answer::Refused,
        // The gateway answers 408 if the client did not send its whole request.
        Some(STATUS_REQUEST_TIMEOUT) if record.refusal.is_some() => Answer::Cancelled,
        _ => Answer::Rejected,
    }
}

/// Whether the response lacks an answer. An empty text completion is an answer, because the model may have
/// nothing to add.
fn is_empty(record: &RequestRecord) -> bool {
    let is_cut = record
        .observed
        .finish_reasons
        .contains(&Some(FinishReason::Length));
    record.is_empty_response() && !is_cut && record.api != Some(Api::Completions)
}

/// Whether the engine ended the answer for lack of tokens, although the client asked for more. The client's own
/// limit does not count as truncation.
fn is_truncated(record: &RequestRecord) -> bool {
    let observed = &*record.observed;
    if observed.finish_reasons[..] != [Some(FinishReason::Length)] {
        return false;
    }
    let Some(limit) = record.options.max_tokens else {
        // Without a limit in the request, a text completion has a limit of 16 tokens.
        return record.api != Some(Api::Completions);
    };
    let is_counted = observed.usage_source == UsageSource::Exact;
    is_counted && observed.usage.output.is_some_and(|output| output < limit)
}

/// Whether the client disconnected after a wait, either before any output or in a pause of the output.
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
    // The gateway sees no output while the client does not read.
    let pause = ended
        .saturating_duration_since(since)
        .saturating_sub(record.observed.write_stall);
    pause >= GIVEN_UP_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fixtures::streamed;
    use tokenweir_routing::PromptFingerprint;

    fn class(change: impl FnOnce(&mut RequestRecord)) -> Option<&'static str> {
        let mut record = streamed();
        record.observed.has_answer = true;
        change(&mut record);
        class_of(&record, &[]).map(Answer::as_str)
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
    fn answers_without_text_are_empty_except_in_completions() {
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
    fn answers_that_reach_the_clients_limit_are_whole() {
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

    /// A request for `prompt` that is open from `from` to `to`, in milliseconds.
    fn sent(prompt: u64, from: u64, to: u64) -> RequestRecord {
        let mut record = streamed();
        let start = record.timings.accepted;
        let at = |millis| start + Duration::from_millis(millis);
        record.timings.accepted = at(from);
        record.timings.received = Some(at(from));
        record.timings.last_output = None;
        record.timings.ended = Some(at(to));
        record.observed.has_answer = true;
        record.fingerprint = Some(Arc::new(PromptFingerprint {
            whole: prompt,
            ..PromptFingerprint::default()
        }));
        record
    }

    #[test]
    fn the_slower_of_two_equal_requests_is_cancelled() {
        let judged = |prompt, from, answered_from| {
            let mut winner = sent(7, answered_from, answered_from + 1_900);
            let mut loser = sent(prompt, from, from + 2_000);
            loser.outcome = Outcome::Cancelled;
            loser.end = Termination::ClientDisconnected;
            AnswerJudge::default().judge([&mut loser, &mut winner].into_iter());
            loser.answer.map(Answer::as_str)
        };
        assert_eq!(judged(7, 0, 50), Some("cancelled"));
        assert_eq!(judged(8, 0, 50), Some("client_timeout"), "another prompt");
        assert_eq!(judged(7, 0, 2_100), Some("client_timeout"), "a retry");
    }

    #[test]
    fn clients_that_leave_together_had_a_timeout() {
        let classes = |times: &[u64]| {
            let mut judge = AnswerJudge::default();
            let mut classes = Vec::new();
            for (number, millis) in times.iter().enumerate() {
                let from = 5_000 * number as u64;
                let mut record = sent(number as u64, from, from + millis);
                record.timings.last_output = record.timings.ended;
                record.outcome = Outcome::Cancelled;
                record.end = Termination::ClientDisconnected;
                judge.judge([&mut record].into_iter());
                classes.push(record.answer.map_or("", Answer::as_str));
            }
            classes.last().copied()
        };
        let equal = [2_000, 2_001, 2_003, 1_999, 2_010, 2_000, 2_002, 2_001];
        assert_eq!(classes(&equal), Some("client_timeout"));
        let different = [700, 2_000, 1_100, 2_600, 900, 1_500, 3_000, 2_000];
        assert_eq!(classes(&different), Some("cancelled"));
    }

    #[test]
    fn a_request_sent_again_is_a_repeat() {
        let is_repeat = |prompt, from| {
            let mut judge = AnswerJudge::default();
            let mut first = sent(7, 0, 2_000);
            first.outcome = Outcome::Cancelled;
            let mut second = sent(prompt, from, from + 400);
            judge.judge([&mut first].into_iter());
            judge.judge([&mut second].into_iter());
            second.is_repeat
        };
        assert!(is_repeat(7, 2_050));
        assert!(!is_repeat(8, 2_050) && !is_repeat(7, 1_000) && !is_repeat(7, 9_000));
    }
}
