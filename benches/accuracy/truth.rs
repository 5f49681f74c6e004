//! The true values of one request: from the plan, from the times of the backend's writes, and from
//! the times of the client's reads.

use super::backend::Played;
use super::client::Seen;
use super::dialect::{Event, Output, Usage};
use super::script::{Ending, Plan};
use std::time::{Duration, Instant};

/// The times of one request in the order of [`TIMES`]. `None` for unknown times.
pub(crate) type Times = [Option<Duration>; TIMES.len()];

/// The quantities with their fields in the access log.
pub(crate) const TIMES: [(&str, &str); 6] = [
    ("TTFT", "ttft_ms"),
    ("ITL, mean of a request", "itl_mean_ms"),
    ("gap between events, mean", "gap_mean_ms"),
    ("gap between events, longest", "gap_max_ms"),
    ("TPOT", "tpot_ms"),
    ("E2E", "duration_ms"),
];

/// One request as seen from all sides.
pub(crate) struct Exchange<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) played: &'a Played,
    pub(crate) seen: &'a Seen,
}

/// An event that the backend wrote.
struct Written<'a> {
    event: &'a Event,
    at: Instant,
    /// Its end position in the client's body.
    end: usize,
}

impl Exchange<'_> {
    /// Whether the client disconnected before the last event, so that it is unknown which events
    /// the gateway saw.
    fn is_open(&self) -> bool {
        matches!(self.plan.ending, Ending::LeavesEarly | Ending::LeavesAt(_))
    }

    /// The written events in order.
    fn written(&self) -> Vec<Written<'_>> {
        let mut end = 0;
        let events = self.events().zip(&self.played.events);
        events
            .map(|((event, is_taken_out), &at)| {
                end += if is_taken_out { 0 } else { event.bytes.len() };
                Written { event, at, end }
            })
            .collect()
    }

    /// The events of the plan, and whether the gateway must remove each: an injected usage event.
    fn events(&self) -> impl Iterator<Item = (&Event, bool)> {
        let writes = self.plan.writes.iter();
        let writes = writes.filter(|write| !write.is_usage || self.played.was_usage_requested);
        writes.flat_map(|write| {
            let is_taken_out = write.is_usage && !self.plan.wants_usage;
            write.events.iter().map(move |event| (event, is_taken_out))
        })
    }

    /// The body that a client gets if it stays: all bytes of the backend except a removed event.
    pub(crate) fn body(&self) -> Vec<u8> {
        let events = self.events().filter(|(_, is_taken_out)| !is_taken_out);
        events.flat_map(|(event, _)| event.bytes.iter().copied()).collect()
    }

    /// Whether the client got that body, and the end that the backend caused.
    pub(crate) fn is_same_bytes(&self) -> bool {
        let (body, seen) = (self.body(), &self.seen.body[..]);
        match self.plan.ending {
            Ending::LeavesEarly | Ending::LeavesAt(_) => body.starts_with(seen),
            Ending::LeavesAtLast => body == seen,
            Ending::Cut => body == seen && !self.seen.is_whole,
            _ => body == seen && self.seen.is_whole,
        }
    }

    /// Minimum and maximum number of output events that the gateway can have seen: the events that
    /// the client had read at its disconnect, and the events that the backend had written when it
    /// noticed.
    pub(crate) fn output_events(&self) -> (u64, u64) {
        let written = self.written();
        let outputs = written.iter().filter(|written| written.event.output.is_some());
        let (mut read, mut all) = (0, 0);
        for output in outputs {
            read += u64::from(output.end <= self.seen.body.len());
            all += 1;
        }
        (if self.is_open() { read } else { all }, all)
    }

    /// The times by the clock of the backend's writes, if the gateway saw `count` output events.
    pub(crate) fn times(&self, count: u64) -> Times {
        let left = self.seen.ended;
        let ended = match self.plan.ending {
            _ if self.is_open() => left,
            Ending::LeavesAtLast if self.played.left.is_some() => left,
            Ending::LeavesAtLast => self.played.ended.min(left),
            _ => self.played.ended,
        };
        self.times_of(count, ended, |written| Some(written.at))
    }

    /// The times by the clock of the client's reads.
    pub(crate) fn times_of_client(&self, count: u64) -> Times {
        let reads = &self.seen.reads;
        self.times_of(count, self.seen.ended, |written| {
            let first = reads.partition_point(|(length, _)| *length < written.end);
            reads.get(first).map(|(_, at)| *at)
        })
    }

    fn times_of(
        &self,
        count: u64,
        ended: Instant,
        at: impl Fn(&Written<'_>) -> Option<Instant>,
    ) -> Times {
        let since = |later: Instant, earlier: Instant| later.saturating_duration_since(earlier);
        let duration = Some(since(ended, self.seen.sent_at));
        let outputs = self.outputs(count);
        let moments = outputs.iter().map(|(written, output)| Some((at(written)?, *output)));
        let moments = moments.collect::<Option<Vec<_>>>().unwrap_or_default();
        let (Some(&(first, _)), Some(&(last, _))) = (moments.first(), moments.last()) else {
            return [None, None, None, None, None, duration];
        };
        let gaps = gaps(&moments, self.plan.choices);
        let usage = self.usage(count).filter(|usage| usage.is_final && self.plan.choices == 1);
        let steps = usage.and_then(|usage| u32::try_from(usage.output?.checked_sub(1)?).ok());
        let tpot = steps.and_then(|steps| since(last, first).checked_div(steps));
        let ttft = Some(since(first, self.seen.sent_at));
        [ttft, gaps.itl(), gaps.mean(), gaps.longest, tpot, duration]
    }

    /// The first `count` events with output.
    fn outputs(&self, count: u64) -> Vec<(Written<'_>, Output)> {
        let written = self.written().into_iter();
        let outputs = written.filter_map(|written| {
            let output = written.event.output?;
            Some((written, output))
        });
        outputs.take(count as usize).collect()
    }

    /// The output token count that the gateway can know, from the best available source.
    pub(crate) fn output_tokens(&self, count: u64) -> (&'static str, Option<u64>) {
        let outputs = self.outputs(count);
        let generated = outputs.iter().map(|(_, output)| u64::from(output.tokens)).sum();
        match self.usage(count).unwrap_or_default() {
            Usage { output: Some(tokens), is_final: true, .. } => ("exact", Some(tokens)),
            Usage { output: Some(tokens), .. } => ("continuous", Some(tokens)),
            _ if outputs.is_empty() => ("missing", None),
            _ if outputs.iter().all(|(_, output)| output.is_count_reported) => {
                ("continuous", Some(generated))
            }
            _ => ("estimated", Some(generated)),
        }
    }

    /// The counts that the engine reported in a response with `count` output events. `None` if
    /// there are none.
    pub(crate) fn usage(&self, count: u64) -> Option<Usage> {
        let mut outputs = 0;
        let mut usage: Option<Usage> = None;
        for Written { event, .. } in self.written() {
            if self.is_open() && event.output.is_some() && outputs == count {
                break;
            }
            outputs += u64::from(event.output.is_some());
            let Some(later) = event.usage else { continue };
            let before = usage.unwrap_or_default();
            usage = Some(Usage {
                input: later.input.or(before.input),
                output: later.output.or(before.output),
                cached: later.cached.or(before.cached),
                reasoning: later.reasoning.or(before.reasoning),
                is_final: later.is_final,
            });
        }
        usage
    }

    /// The finish reasons of the choices, as far as the response arrived.
    pub(crate) fn finish(&self) -> &[&'static str] {
        match self.plan.ending {
            Ending::Stop | Ending::Length | Ending::Abort | Ending::LeavesAtLast => {
                &self.plan.finish
            }
            _ => &[],
        }
    }

    /// Status, outcome, termination, and the phase in which the response broke off.
    pub(crate) fn outcome(&self) -> (u16, &'static str, &'static str, Option<&'static str>) {
        match self.plan.ending {
            Ending::Stop | Ending::Length => (200, "ok", "ok", None),
            Ending::LeavesAtLast => (200, "ok", "ok_client_disconnected_after_end", None),
            Ending::Abort => (200, "aborted", "upstream_abort", None),
            Ending::Failure => (200, "stream_error", "inband_error", None),
            Ending::Cut => (200, "truncated", "truncated_cut", Some("decode")),
            Ending::NoLastEvent => (200, "truncated", "truncated_clean", Some("decode")),
            Ending::LeavesEarly => (200, "cancelled", "client_cancelled", Some("prefill")),
            Ending::LeavesAt(_) => (200, "cancelled", "client_cancelled", Some("decode")),
            Ending::Refused(status @ 400..500) => (status, "client_error", "client_error", None),
            Ending::Refused(status) => (status, "upstream_error", "upstream_status", None),
        }
    }

    /// Delay from the client's disconnect to the end of the gateway's connection to the backend.
    pub(crate) fn abort_delay(&self) -> Option<Duration> {
        Some(self.played.left?.saturating_duration_since(self.seen.ended))
    }
}

/// The gaps between the events of each choice.
#[derive(Default)]
struct Gaps {
    count: u32,
    sum: Duration,
    longest: Option<Duration>,
    /// Gaps before events that report their tokens, and the number of these tokens.
    per_token: Duration,
    tokens: u32,
}

impl Gaps {
    fn mean(&self) -> Option<Duration> {
        self.sum.checked_div(self.count)
    }

    /// A gap is divided among the tokens of the event that ends it.
    fn itl(&self) -> Option<Duration> {
        self.per_token.checked_div(self.tokens)
    }
}

fn gaps(moments: &[(Instant, Output)], choices: usize) -> Gaps {
    let mut gaps = Gaps::default();
    for choice in 0..choices {
        let of_choice = moments.iter().filter(|(_, output)| output.choice == choice);
        let mut arrivals = of_choice.copied().collect::<Vec<_>>();
        for pair in arrivals.windows(2) {
            let gap = pair[1].0.saturating_duration_since(pair[0].0);
            gaps.count += 1;
            gaps.sum += gap;
            gaps.longest = gaps.longest.max(Some(gap));
        }
        // Events of the same time arrived at once: they end one gap.
        arrivals.dedup_by(|later, earlier| {
            let is_one = later.0 == earlier.0;
            if is_one {
                earlier.1.tokens += later.1.tokens;
            }
            is_one
        });
        for pair in arrivals.windows(2).filter(|pair| pair[1].1.is_count_reported) {
            gaps.per_token += pair[1].0.saturating_duration_since(pair[0].0);
            gaps.tokens += pair[1].1.tokens;
        }
    }
    gaps
}
