//! One exchange, drawn by lot from a seed: the answer, how much of it comes, and who closes.

use super::chunks::{Chunks, Ends};
use super::framing::Framing;
use super::plan::{Field, FrontEnd, Plan, Told, UsageAsked, What};
use super::story::{Event, Kind, Meaning, Story};
use super::{audio, chance, typed};
use fastrand::Rng;
use tokenweir_core::openai::Api;

/// An exchange that is yet to take place.
pub(crate) struct Case {
    pub api: Api,
    pub status: u16,
    pub content_type: &'static str,
    pub story: Story,
    /// The gateway asked for usage; its client did not.
    pub is_usage_injected: bool,
    /// How many bytes of the answer come.
    pub arrived: usize,
    pub close: Close,
    /// What else has to do with luck.
    pub random: Rng,
}

/// How the bytes end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Close {
    /// As HTTP says.
    Whole,
    /// The connection breaks.
    Broken,
    /// The client leaves.
    Left,
}

impl Case {
    /// The exchange of this seed.
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
            Api::Responses => typed::responses(&mut framing, is_damaged, ends),
            Api::Messages => typed::messages(&mut framing, is_damaged, ends),
            Api::Audio => audio::transcription(&mut framing, is_damaged, ends),
            _ => {
                let plan = Plan::draw(api, &mut random);
                // A server may tell usage although nobody asked, and may not although somebody did.
                is_usage_injected = chance(&mut random, 50);
                Chunks::new(&plan, &mut framing).write(is_damaged, ends);
                framing.story.kinds.extend(kinds(&plan));
            }
        }
        framing.story.kinds.push(match ends {
            Ends::Usual => "the last event is there",
            Ends::WithoutDone => "the last event is missing",
            Ends::Error => "a failure is reported",
        });
        if framing.chance(3) {
            framing.comment();
        }
        let story = framing.story;
        let (arrived, close) = ending(&story, &mut random);
        let content_type =
            ["text/event-stream; charset=utf-8", "text/event-stream", "Text/Event-Stream"]
                [random.usize(..3)];
        Self { api, status: 200, content_type, story, is_usage_injected, arrived, close, random }
    }

    /// Whether the answer is a stream of events.
    pub(crate) fn is_stream(&self) -> bool {
        self.status == 200
    }

    /// A status that is no success, with a body that says why.
    fn refused(api: Api, mut random: Rng) -> Self {
        let status = [400, 401, 404, 422, 429, 499, 500, 502, 503, 504][random.usize(..10)];
        let is_json = chance(&mut random, 80);
        let body = if is_json {
            r#"{"error":{"message":"no \"x\"","type":"BadRequestError","param":null,"code":400}}"#
        } else {
            "Internal Server Error"
        };
        let error = is_json.then_some((Some("400"), Some("BadRequestError")));
        let meaning = Meaning { error, ..Meaning::default() };
        let story = Story {
            bytes: body.into(),
            events: vec![Event { complete_at: body.len(), meaning }],
            kinds: vec![if status < 500 { "4xx" } else { "5xx" }],
            ..Story::default()
        };
        let (arrived, close) = ending(&story, &mut random);
        Self {
            api,
            status,
            content_type: if is_json { "application/json" } else { "text/plain" },
            story,
            is_usage_injected: random.bool(),
            arrived,
            close,
            random,
        }
    }
}

/// How much comes, and who closes then.
fn ending(story: &Story, random: &mut Rng) -> (usize, Close) {
    let all = story.bytes.len();
    let anywhere = random.usize(..=all);
    let last = story.events.iter().find(|event| event.meaning.is_last);
    let after_last = last.map_or(all, |event| event.complete_at);
    match random.u8(..100) {
        0..50 => (all, Close::Whole),
        50..57 => (anywhere, Close::Whole),
        57..73 => (anywhere, Close::Broken),
        73..76 => (all, Close::Broken),
        76..90 => (anywhere, Close::Left),
        90..98 => (after_last, Close::Left),
        _ => (all, Close::Left),
    }
}

fn kinds(plan: &Plan) -> Vec<&'static str> {
    let has = |what: fn(&What) -> bool| plan.steps.iter().any(|step| what(&step.what));
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
        (plan.told != Told::Nothing, "token ids or logprobs"),
        (plan.steps.iter().any(|step| step.tokens > 1), "several tokens in an event"),
        (has(|what| matches!(what, What::Text(Kind::Reasoning, _))), "reasoning"),
        (has(|what| matches!(what, What::Text(_, Field::ToolCalls))), "tool calls"),
        (has(|what| matches!(what, What::Text(_, Field::Refusal))), "refusal"),
        (has(|what| matches!(what, What::HeldBack)), "text held back"),
        (has(|what| matches!(what, What::Finish("abort", ..))), "abort"),
        (!has(|what| matches!(what, What::Finish(..))), "no finish reason"),
    ];
    kinds.into_iter().filter(|(has, _)| *has).map(|(_, kind)| kind).collect()
}
