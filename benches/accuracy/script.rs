//! The plans: the content of each request and the behaviour of the backend. All plans come from one
//! seed, so every run has the same plans. The true times are not part of the plan: they are the
//! times of the backend's writes.

use super::author;
use super::dialect::{FrontEnd, Shape};
use super::framing::{Framing, Write};
use fastrand::Rng;
use serde_json::json;
use std::time::Duration;

/// One request and its response.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) id: String,
    pub(crate) shape: Shape,
    /// The body of the request.
    pub(crate) request: String,
    /// Whether the client requests usage, or the API always reports it.
    pub(crate) wants_usage: bool,
    pub(crate) choices: usize,
    /// The time that the client waits before the request.
    pub(crate) think: Duration,
    pub(crate) head: Write,
    pub(crate) writes: Vec<Write>,
    pub(crate) ending: Ending,
    /// The finish reason of each choice in OpenAI's terms, if the response gets that far.
    pub(crate) finish: Vec<&'static str>,
}

/// The termination of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The model stopped or calls a tool.
    Stop,
    /// The token limit was reached.
    Length,
    /// The engine aborted the request and reported it.
    Abort,
    /// An error event inside a 200 response.
    Failure,
    /// The connection ends in the middle of the response.
    Cut,
    /// The chunked body is complete, but the last event is missing.
    NoLastEvent,
    /// The client disconnects before the first token.
    LeavesEarly,
    /// The client disconnects when it has this many bytes of the body.
    LeavesAt(usize),
    /// The client disconnects with the last event and does not read the last chunk.
    LeavesAtLast,
    /// The backend responds with this error status.
    Refused(u16),
}

/// The properties of a request and its response.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    pub(crate) shape: Shape,
    pub(crate) front_end: FrontEnd,
    pub(crate) framing: Framing,
    pub(crate) ask: Ask,
    pub(crate) choices: usize,
    /// Events carry the ids of their tokens.
    pub(crate) has_ids: bool,
    /// Several tokens arrive at once.
    pub(crate) is_speculative: bool,
    pub(crate) reasons: bool,
    pub(crate) calls_tool: bool,
    pub(crate) ending: Ending,
}

/// The usage options of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Nothing,
    No,
    Yes,
    WithEveryEvent,
}

/// All plans of a run.
pub(crate) fn plans(count: usize, seed: u64) -> Vec<Plan> {
    let mut rng = Rng::with_seed(seed);
    (0..count).map(|index| plan(index, &mut rng)).collect()
}

fn plan(index: usize, rng: &mut Rng) -> Plan {
    let kind = Kind::draw(rng);
    let id = format!("accuracy-{index}");
    let think = Duration::from_millis(rng.u64(..250));
    let (head, writes) = author::write(&kind, &id, rng);
    let ending = match kind.ending {
        Ending::LeavesAt(_) => Ending::LeavesAt(somewhere(&writes, rng)),
        ending => ending,
    };
    let wants_usage = !kind.shape.is_older() || matches!(kind.ask, Ask::Yes | Ask::WithEveryEvent);
    Plan {
        id,
        shape: kind.shape,
        request: kind.request(),
        wants_usage,
        choices: kind.choices,
        think,
        head,
        writes,
        ending,
        finish: vec![kind.finish(); kind.choices],
    }
}

/// The position in a body at which some output ends, with more output after it.
fn somewhere(writes: &[Write], rng: &mut Rng) -> usize {
    let mut ends = Vec::new();
    let mut end = 0;
    for event in writes.iter().flat_map(|write| &write.events) {
        end += event.bytes.len();
        if event.output.is_some() {
            ends.push(end);
        }
    }
    ends[rng.usize(..ends.len() * 3 / 4)]
}

impl Kind {
    fn draw(rng: &mut Rng) -> Self {
        let shape = match rng.u32(..100) {
            0..50 => Shape::Chat,
            50..70 => Shape::Completions,
            70..85 => Shape::Responses,
            _ => Shape::Messages,
        };
        let is_rust = shape.is_older() && chance(rng, 40);
        let ask = match rng.u32(..100) {
            _ if !shape.is_older() => Ask::Nothing,
            0..40 => Ask::Nothing,
            40..50 => Ask::No,
            50..75 => Ask::Yes,
            _ => Ask::WithEveryEvent,
        };
        let can_be_two = shape.is_older() && !is_rust && ask != Ask::WithEveryEvent;
        let framing = match rng.u32(..100) {
            0..25 => Framing::Cut,
            _ if is_rust => Framing::Together,
            _ => Framing::Apart,
        };
        Self {
            shape,
            front_end: if is_rust { FrontEnd::Rust } else { FrontEnd::Python },
            framing,
            ask,
            choices: if can_be_two && chance(rng, 15) { 2 } else { 1 },
            has_ids: shape.is_older() && chance(rng, 25),
            is_speculative: chance(rng, 25),
            reasons: shape != Shape::Completions && chance(rng, 40),
            calls_tool: shape != Shape::Completions && chance(rng, 20),
            ending: ending(shape, rng),
        }
    }

    /// The finish reason of a choice in OpenAI's terms.
    pub(crate) fn finish(&self) -> &'static str {
        match self.ending {
            Ending::Length => "length",
            Ending::Abort => "abort",
            // The status of the Responses API does not show tool calls.
            _ if self.calls_tool && self.shape != Shape::Responses => "tool_calls",
            _ => "stop",
        }
    }

    fn request(&self) -> String {
        let mut request = json!({ "model": "m", "stream": true });
        let text = "Tell me a story. 日本";
        match self.shape {
            Shape::Completions => request["prompt"] = json!(text),
            Shape::Responses => request["input"] = json!(text),
            Shape::Chat | Shape::Messages => {
                request["messages"] = json!([{ "role": "user", "content": text }]);
            }
        }
        if self.shape.is_older() {
            request["n"] = json!(self.choices);
            request["return_token_ids"] = json!(self.has_ids);
        }
        let options = match self.ask {
            Ask::Nothing => return request.to_string(),
            Ask::No => json!({ "include_usage": false }),
            Ask::Yes => json!({ "include_usage": true }),
            Ask::WithEveryEvent => json!({ "include_usage": true, "continuous_usage_stats": true }),
        };
        request["stream_options"] = options;
        request.to_string()
    }
}

fn ending(shape: Shape, rng: &mut Rng) -> Ending {
    match rng.u32(..100) {
        0..48 => Ending::Stop,
        48..60 => Ending::Length,
        60..65 if shape.is_older() => Ending::Abort,
        60..70 => Ending::Failure,
        70..75 => Ending::Cut,
        75..80 => Ending::NoLastEvent,
        80..83 => Ending::LeavesEarly,
        83..90 => Ending::LeavesAt(0),
        90..96 => Ending::LeavesAtLast,
        96..98 => Ending::Refused(400),
        _ => Ending::Refused(503),
    }
}

impl Plan {
    /// The final event of the response.
    pub(crate) fn last_event(&self) -> &[u8] {
        let mut events = self.writes.iter().flat_map(|write| &write.events);
        events.next_back().map_or(&[], |event| &event.bytes)
    }
}

pub(crate) fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(..100) < percent
}
