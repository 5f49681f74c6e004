//! Writes the response to a request: its events, their times and their framing, up to the
//! termination of the plan.

use super::dialect::{Channel, Dialect, Event, FrontEnd, Piece, Shape, Usage};
use super::framing::{Write, chunk_head, frame};
use super::script::{Ask, Ending, Kind, chance};
use fastrand::Rng;
use serde_json::json;
use std::time::Duration;

/// A response while it is written.
struct Author<'a> {
    kind: &'a Kind,
    dialect: Dialect,
    rng: &'a mut Rng,
    /// The token counts that the engine would report now.
    usage: Usage,
    writes: Vec<Write>,
}

/// Delay of output that the client does not wait for, so that even a slow client has disconnected
/// by then.
const AFTER_DISCONNECT: Duration = Duration::from_secs(2);

const WORDS: [&str; 14] = [
    "The",
    " answer",
    " is",
    "日本語",
    "🦀",
    " é",
    "\n\n",
    " \"quoted\"",
    "\\",
    " data: [DONE]",
    "{\"error\":1}",
    "\"usage\":{\"completion_tokens\":9}",
    "event: error\n",
    "\u{2028}",
];

/// Writes the response head and body.
pub(crate) fn write(kind: &Kind, id: &str, rng: &mut Rng) -> (Write, Vec<Write>) {
    let input = rng.u64(8..4_000);
    let cached = (!kind.shape.is_older() || chance(rng, 60)).then(|| rng.u64(..input));
    let tells_reasoning =
        kind.shape == Shape::Responses || (kind.shape == Shape::Chat && kind.reasons);
    let usage = Usage {
        input: Some(input),
        output: Some(0),
        cached,
        reasoning: tells_reasoning.then_some(0),
        is_final: false,
    };
    let dialect = Dialect { shape: kind.shape, front_end: kind.front_end, id: id.into() };
    let mut author = Author { kind, dialect, rng, usage, writes: Vec::new() };
    match kind.ending {
        Ending::Refused(status) => author.refusal(status),
        _ => author.answer(),
    }
    (author.head(), author.writes)
}

impl Author<'_> {
    /// Writes the response up to its termination.
    fn answer(&mut self) {
        let kind = self.kind;
        // Responses streams always begin before the engine; role events of other servers can, too.
        // They can have counts. Whether the gateway sees them before an early disconnect depends on
        // timing.
        let may_begin_early = kind.ending != Ending::LeavesEarly && chance(self.rng, 30);
        let begins_early = kind.shape == Shape::Responses || may_begin_early;
        let mut opening = self.dialect.opening(kind.choices, self.usage, self.so_far());
        if begins_early && !opening.is_empty() {
            self.write(std::mem::take(&mut opening), Duration::from_millis(1));
        }
        self.prefill();
        let all = self.rng.usize(60..=100);
        let count = match kind.ending {
            Ending::Abort | Ending::Failure | Ending::Cut | Ending::NoLastEvent => {
                self.rng.usize(1..all)
            }
            _ => all,
        };
        // The output that the front end finds at once: sometimes several tokens with the Rust front
        // end or with two choices.
        let is_bursty = kind.choices > 1 || kind.front_end == FrontEnd::Rust;
        let mut index = 0;
        while index < count {
            let most = if is_bursty && index > 0 { 3 } else { 1 };
            let burst = self.rng.usize(1..=most).min(count - index);
            let mut events = std::mem::take(&mut opening);
            for number in index..index + burst {
                let channel = self.channel(number, all);
                events.push(self.output(channel, number % kind.choices));
            }
            let pause = if index == 0 { Duration::ZERO } else { gap(self.rng) };
            self.write(events, pause);
            index += burst;
        }
        self.end();
    }

    /// The kind of an output: first reasoning, then the answer, and a tool call last.
    fn channel(&self, number: usize, all: usize) -> Channel {
        let (third, is_first) = (number * 3 / all, number * 3 % all < 3);
        match third {
            0 if self.kind.reasons => Channel::Reasoning,
            2 if self.kind.calls_tool && is_first => Channel::ToolName,
            2 if self.kind.calls_tool => Channel::ToolArguments,
            _ => Channel::Answer,
        }
    }

    /// The events up to the first token: typed events and keep-alives.
    fn prefill(&mut self) {
        let least = if self.kind.ending == Ending::LeavesEarly { 200 } else { 20 };
        let mut rest = Duration::from_micros(self.rng.u64(least * 1_000..300_000));
        if self.kind.shape.is_older() && chance(self.rng, 20) {
            rest /= 2;
            self.write(vec![Event::comment()], rest);
        }
        self.writes.push(Write::bare(rest, b""));
    }

    fn output(&mut self, channel: Channel, choice: usize) -> Event {
        let count = if self.kind.is_speculative { self.rng.usize(1..=5) } else { 1 };
        let ids: Vec<u32> = (0..count).map(|_| self.rng.u32(..150_000)).collect();
        // A token that ends inside a character has an id but no text.
        let is_held_back = self.kind.has_ids && channel == Channel::Answer && chance(self.rng, 5);
        let words = ids.iter().map(|id| WORDS[*id as usize % WORDS.len()]);
        let text = words.take(if is_held_back { 0 } else { count }).collect::<String>();
        self.count(count, channel == Channel::Reasoning);
        let (token_ids, so_far) = (self.kind.has_ids.then_some(&ids[..]), self.so_far());
        let tokens = count as u32;
        self.dialect.output(&Piece { choice, channel, text: &text, tokens, token_ids, so_far })
    }

    fn end(&mut self) {
        let leaves = matches!(self.kind.ending, Ending::LeavesAt(_));
        let pause = if leaves { AFTER_DISCONNECT } else { gap(self.rng) };
        match self.kind.ending {
            Ending::Cut => {
                if chance(self.rng, 50) {
                    self.half_an_event(pause);
                }
                return;
            }
            Ending::NoLastEvent => {}
            Ending::Failure => self.write(self.dialect.failure(), pause),
            _ if self.kind.shape.is_older() => self.end_of_older(pause),
            _ => {
                self.count(1, false);
                let usage = Usage { is_final: true, ..self.usage };
                self.write(self.dialect.ending(self.kind.finish(), usage), pause);
            }
        }
        let is_last = self.kind.ending == Ending::LeavesAtLast;
        let pause = if is_last { AFTER_DISCONNECT } else { Duration::ZERO };
        self.writes.push(Write::bare(pause, b"0\r\n\r\n"));
    }

    fn end_of_older(&mut self, pause: Duration) {
        let finish = self.kind.finish();
        let mut events = Vec::new();
        for choice in 0..self.kind.choices {
            // The stop token. A response that ends by a limit or an abort has none.
            let eos = if finish == "stop" || finish == "tool_calls" { &[2][..] } else { &[] };
            self.count(eos.len(), false);
            let piece =
                Piece::without_text(choice, self.kind.has_ids.then_some(eos), self.so_far());
            events.push(self.dialect.finish(&piece, finish));
        }
        self.write(events, pause);
        let from = self.writes.len();
        let usage = Usage { is_final: true, ..self.usage };
        self.write(vec![self.dialect.usage(usage)], Duration::ZERO);
        self.writes[from..].iter_mut().for_each(|write| write.is_usage = true);
        self.write(vec![Event::done()], Duration::ZERO);
    }

    /// The beginning of a chunk and of an event that never end.
    fn half_an_event(&mut self, pause: Duration) {
        let half = Event { bytes: b"data: {\"id\":\"".to_vec(), ..Event::comment() };
        let mut bytes = chunk_head(200, self.kind.front_end);
        bytes.extend_from_slice(&half.bytes);
        self.writes.push(Write { events: vec![half], ..Write::bare(pause, &bytes) });
    }

    fn refusal(&mut self, status: u16) {
        let kind = if status == 400 { "BadRequestError" } else { "ServiceUnavailableError" };
        let error = json!({ "message": "no", "type": kind, "param": null, "code": status });
        let bytes = json!({ "error": error }).to_string().into_bytes();
        let write = Write::bare(Duration::ZERO, &bytes);
        self.writes.push(Write { events: vec![Event { bytes, ..Event::comment() }], ..write });
    }

    /// The response head is sent before the engine starts.
    fn head(&mut self) -> Write {
        let length: usize = self.writes.iter().map(|write| write.bytes.len()).sum();
        let head = match (self.kind.ending, self.kind.front_end) {
            (Ending::Refused(status), _) => format!(
                "HTTP/1.1 {status} No\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\n\r\n"
            ),
            (_, FrontEnd::Python) => "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: \
                 text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
                .into(),
            (_, FrontEnd::Rust) => "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                 cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
                .into(),
        };
        Write::bare(Duration::from_millis(self.rng.u64(1..10)), head.as_bytes())
    }

    fn count(&mut self, tokens: usize, is_reasoning: bool) {
        let add = |count: &mut u64| *count += tokens as u64;
        self.usage.output.as_mut().map(add);
        self.usage.reasoning.as_mut().filter(|_| is_reasoning).map(add);
    }

    fn so_far(&self) -> Option<Usage> {
        let is_asked = self.kind.ask == Ask::WithEveryEvent && self.kind.shape.is_older();
        is_asked.then_some(Usage { cached: None, reasoning: None, ..self.usage })
    }

    fn write(&mut self, events: Vec<Event>, pause: Duration) {
        let how = (self.kind.framing, self.kind.front_end);
        self.writes.extend(frame(events, pause, how, self.rng));
    }
}

/// A gap of at least 5 ms and about 30 ms on average, like the steps of an engine under load.
fn gap(rng: &mut Rng) -> Duration {
    Duration::from_secs_f64((0.005 - 0.025 * (1.0 - rng.f64()).ln()).min(0.150))
}
