//! The true times of one request. They follow from its plan and from the times at which the backend wrote.

use super::backend::Played;
use super::client::Seen;
use super::generated_streams::exchange_case::Close;
use super::generated_streams::expected_record::RecordFields;
use super::generated_streams::expected_stream::Event;
use super::plan::Plan;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The times of one request in the order of [`TIMES`]. `None` for a time that the response does not have.
pub(crate) type Times = [Option<Duration>; TIMES.len()];

/// The times that the bench compares: the name in the table, and the field in the access log.
pub(crate) const TIMES: [(&str, &str); 6] = [
    ("TTFT", "ttft_ms"),
    ("ITL, mean of a request", "itl_mean_ms"),
    ("gap between events, mean", "gap_mean_ms"),
    ("gap between events, longest", "gap_max_ms"),
    ("TPOT", "tpot_ms"),
    ("E2E", "duration_ms"),
];

/// One request: its plan, and what the backend and the client measured.
pub(crate) struct Exchange<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) played: &'a Played,
    pub(crate) seen: &'a Seen,
}

/// An event of the response with output.
#[derive(Clone, Copy)]
struct Output {
    at: Instant,
    choice: usize,
    /// The number of tokens of the event. `None` if the event does not report it.
    tokens: Option<u64>,
}

impl Exchange<'_> {
    /// Returns the events with output that arrived at the gateway.
    fn outputs(&self) -> Vec<Output> {
        let case = &self.plan.case;
        let writes = self
            .plan
            .writes
            .iter()
            .filter(|write| !write.body.is_empty());
        let writes: Vec<_> = writes.zip(&self.played.writes).collect();
        let events = case
            .stream
            .events
            .iter()
            .filter(|event| event.complete_at <= case.arrived);
        let output = |event: &Event| {
            let tokens = event.meaning.output?.tokens;
            // The time of the event is that of the write that completes it.
            let &(_, &at) = writes
                .iter()
                .find(|(write, _)| write.body.end >= event.complete_at)?;
            Some(Output {
                at,
                choice: event.meaning.choices.saturating_sub(1),
                tokens,
            })
        };
        events.filter_map(output).collect()
    }

    /// Computes the true times of the request. `fields` has the true contents of the gateway's record of the
    /// request.
    pub(crate) fn times(&self, fields: &RecordFields) -> Times {
        let since = |later: Instant, earlier: Instant| later.saturating_duration_since(earlier);
        let is_left = self.plan.case.close == Close::Left;
        let ended = if is_left {
            self.seen.ended
        } else {
            self.played.ended
        };
        let duration = Some(since(ended, self.seen.sent_at));
        let outputs = self.outputs();
        let (Some(first), Some(last)) = (outputs.first(), outputs.last()) else {
            return [None, None, None, None, None, duration];
        };
        let gaps = gaps(&outputs);
        let choices = fields.finish_reasons.len();
        let tokens = fields
            .output_tokens
            .filter(|_| fields.usage_source == "exact" && choices == 1);
        let steps = tokens.and_then(|tokens| u32::try_from(tokens.checked_sub(1)?).ok());
        let tpot = steps.and_then(|steps| since(last.at, first.at).checked_div(steps));
        let ttft = Some(since(first.at, self.seen.sent_at));
        [ttft, gaps.itl(), gaps.mean(), gaps.longest, tpot, duration]
    }

    /// Computes the time from the client's disconnect to the moment at which the backend sees that the
    /// gateway has closed the connection. `None`: the gateway did not close it.
    pub(crate) fn abort_delay(&self) -> Option<Duration> {
        Some(self.played.left?.saturating_duration_since(self.seen.ended))
    }
}

/// The gaps between the events with output of each choice, added over all choices of a response.
#[derive(Default)]
struct Gaps {
    count: u32,
    sum: Duration,
    longest: Option<Duration>,
    /// The sum of the gaps that end with an event that reports its tokens, and the number of these tokens.
    per_token: Duration,
    tokens: u32,
}

impl Gaps {
    fn mean(&self) -> Option<Duration> {
        self.sum.checked_div(self.count)
    }

    /// Computes the mean ITL: each gap is divided among the tokens of the event that ends it. `None`: no
    /// event that ends a gap reports its tokens.
    fn itl(&self) -> Option<Duration> {
        self.per_token.checked_div(self.tokens)
    }
}

fn gaps(outputs: &[Output]) -> Gaps {
    let mut choices: BTreeMap<usize, Vec<Output>> = BTreeMap::new();
    for output in outputs {
        choices.entry(output.choice).or_default().push(*output);
    }
    let mut gaps = Gaps::default();
    for mut arrivals in choices.into_values() {
        for pair in arrivals.windows(2) {
            let gap = pair[1].at.saturating_duration_since(pair[0].at);
            gaps.count += 1;
            gaps.sum += gap;
            gaps.longest = gaps.longest.max(Some(gap));
        }
        // Events with the same time arrived at once: they end one gap together.
        arrivals.dedup_by(|later, earlier| {
            let is_one = later.at == earlier.at;
            if is_one {
                earlier.tokens = earlier.tokens.zip(later.tokens).map(|(a, b)| a + b);
            }
            is_one
        });
        for pair in arrivals.windows(2) {
            if let Some(tokens) = pair[1].tokens {
                gaps.per_token += pair[1].at.saturating_duration_since(pair[0].at);
                gaps.tokens += tokens as u32;
            }
        }
    }
    gaps
}
