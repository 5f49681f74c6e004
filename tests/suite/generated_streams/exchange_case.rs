//! A random exchange: the response, the part of the response that arrives, and which party closes the
//! connection.

use super::chunks::{Chunks, Ends};
use super::expected_stream::{Event, GeneratedStream, Meaning};
use super::framing::Framing;
use super::plan::{Field, FrontEnd, Plan, StepKind, UsageAsked};
use super::{audio, chance, typed_events, unknown_events};
use fastrand::Rng;
use tokenweir_protocol::openai::Api;

/// A random exchange: a response, and how much of it arrives.
pub(crate) struct Case {
    pub api: Api,
    pub status: u16,
    pub content_type: &'static str,
    pub stream: GeneratedStream,
    /// Whether the gateway requested usage, because the client did not.
    pub is_usage_injected: bool,
    /// Number of bytes of the response that arrive.
    pub arrived: usize,
    pub close: Close,
    /// The generator of the random numbers for all later choices.
    pub random: Rng,
}

/// How the exchange ends after the last byte that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// The response ends completely in terms of HTTP.
    Whole,
    /// The connection breaks.
    Broken,
    /// The client disconnects.
    Left,
}

impl Case {
    /// Draws the exchange that belongs to this seed. The same seed always gives the same exchange.
    pub(crate) fn draw(api: Api, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        if chance(&mut random, 4) {
            return Self::refused(api, random);
        }
        let ends = match random.u8(..100) {
            0..6 => Ends::WithoutDone,
            6..14 => Ends::Error,
            _ => Ends::Usual,
        };
        let is_damaged = chance(&mut random, 8);
        let mut framing = Framing::new(random.fork());
        let mut is_usage_injected = false;
        match api {
            Api::Responses => typed_events::responses(&mut framing, is_damaged, ends),
            Api::Messages => typed_events::messages(&mut framing, is_damaged, ends),
            Api::Audio => audio::transcription(&mut framing, is_damaged, ends),
            Api::Other => unknown_events::stream(&mut framing, ends),
            _ => {
                let plan = Plan::draw(api, &mut random);
                // Random, because a server can send usage that was not requested, and can omit requested
                // usage.
                is_usage_injected = chance(&mut random, 50);
                Chunks::new(&plan, &mut framing).write(is_damaged, ends);
                framing.stream.kinds.extend(kinds(&plan));
            }
        }
        framing.stream.kinds.push(match ends {
            Ends::Usual => "the last event is present",
            Ends::WithoutDone => "the last event is missing",
            Ends::Error => "an error is reported",
        });
        if framing.chance(3) {
            framing.comment();
        }
        let stream = framing.stream;
        let (arrived, close) = ending(&stream, &mut random);
        let content_type = [
            "text/event-stream; charset=utf-8",
            "text/event-stream",
            "Text/Event-Stream",
        ][random.usize(..3)];
        Self {
            api,
            status: 200,
            content_type,
            stream,
            is_usage_injected,
            arrived,
            close,
            random,
        }
    }

    /// Whether the gateway knows the format of the events of this API.
    pub(crate) fn has_known_format(&self) -> bool {
        self.api != Api::Other
    }

    /// Whether the response is an event stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.status == 200
    }

    /// Draws a response with an error status and an error document.
    fn refused(api: Api, mut random: Rng) -> Self {
        let status = [400, 401, 404, 422, 429, 499, 500, 502, 503, 504][random.usize(..10)];
        let is_json = chance(&mut random, 80);
        let body = if is_json {
            r#"{"error":{"message":"no \"x\"","type":"BadRequestError","param":null,"code":400}}"#
        } else {
            "Internal Server Error"
        };
        let error = is_json.then_some((Some("400"), Some("BadRequestError")));
        let meaning = Meaning {
            error,
            ..Meaning::default()
        };
        let stream = GeneratedStream {
            bytes: body.into(),
            events: vec![Event {
                begins_at: 0,
                data_ends_at: body.len(),
                complete_at: body.len(),
                meaning,
            }],
            kinds: vec![if status < 500 { "4xx" } else { "5xx" }],
            ..GeneratedStream::default()
        };
        let (arrived, close) = ending(&stream, &mut random);
        Self {
            api,
            status,
            content_type: if is_json {
                "application/json"
            } else {
                "text/plain"
            },
            stream,
            is_usage_injected: random.bool(),
            arrived,
            close,
            random,
        }
    }
}

/// Draws the number of bytes that arrive, and how the exchange ends.
fn ending(stream: &GeneratedStream, random: &mut Rng) -> (usize, Close) {
    let all = stream.bytes.len();
    let anywhere = random.usize(..=all);
    let last = stream.events.iter().find(|event| event.meaning.is_last);
    let after_last = last.map_or(all, |event| event.complete_at);
    match random.u8(..100) {
        0..50 => (all, Close::Whole),
        50..57 => (before_a_malformed_event(stream, anywhere), Close::Whole),
        57..73 => (anywhere, Close::Broken),
        73..76 => (all, Close::Broken),
        76..90 => (anywhere, Close::Left),
        90..98 => (after_last, Close::Left),
        _ => (all, Close::Left),
    }
}

/// Returns `at`. If a malformed event contains this position, returns the beginning of that event, because a
/// part of a malformed event could be a complete event at the regular end of the body.
fn before_a_malformed_event(stream: &GeneratedStream, at: usize) -> usize {
    let is_inside = |event: &&Event| {
        event.meaning.is_malformed && (event.begins_at..event.complete_at).contains(&at)
    };
    stream
        .events
        .iter()
        .find(is_inside)
        .map_or(at, |event| event.begins_at)
}

fn kinds(plan: &Plan) -> Vec<&'static str> {
    let has = |what: fn(&StepKind) -> bool| plan.steps.iter().any(|step| what(&step.what));
    let front_end = match plan.front_end {
        FrontEnd::VllmPython => "vLLM, Python",
        FrontEnd::VllmRust => "vLLM, Rust",
        FrontEnd::Sglang => "SGLang",
        FrontEnd::LlamaCpp => "llama.cpp",
    };
    let kinds = [
        (true, front_end),
        (plan.choices > 1, "several choices"),
        (plan.usage == UsageAsked::AtTheEnd, "usage at the end"),
        (plan.usage == UsageAsked::Continuous, "continuous usage"),
        (plan.reports_tokens(), "token ids or logprobs"),
        (
            plan.steps.iter().any(|step| step.tokens > 1),
            "several tokens in an event",
        ),
        (
            has(|what| matches!(what, StepKind::Text(Field::Reasoning))),
            "reasoning",
        ),
        (
            has(|what| matches!(what, StepKind::Text(Field::ToolCalls))),
            "tool calls",
        ),
        (
            has(|what| matches!(what, StepKind::Text(Field::Refusal))),
            "refusal",
        ),
        (
            has(|what| matches!(what, StepKind::HeldBack)),
            "text withheld",
        ),
        (
            has(|what| matches!(what, StepKind::Finish("abort", ..))),
            "abort",
        ),
        (
            !has(|what| matches!(what, StepKind::Finish(..))),
            "no finish reason",
        ),
    ];
    kinds
        .into_iter()
        .filter(|(has, _)| *has)
        .map(|(_, kind)| kind)
        .collect()
}
