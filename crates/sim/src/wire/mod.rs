//! vLLM's wire, byte for byte as the Python front end of 0.32 writes it. The shapes are templates
//! that look like the recordings they were taken from, with `$holes` for what changes. [`Events`]
//! turns the number of tokens an engine has produced into the next event; it knows no socket.
//! A reader that falls behind gets several tokens in one event, as with vLLM.

mod chat;
mod completion;
pub mod documents;
mod messages;
mod openai;
mod refusal;
mod responses;

use bytes::BytesMut;
use serde_json::Value;

pub use self::refusal::Refusal;
use super::text::{Answer, Finish};

/// What vLLM 0.32.0 calls itself in `system_fingerprint`.
const FINGERPRINT: &str = "vllm-0.32.0-f0a48782";

/// The APIs that generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
}

impl Api {
    fn dialect(self) -> &'static dyn Dialect {
        match self {
            Self::Chat => &chat::Chat,
            Self::Completions => &completion::Completion,
            Self::Responses => &responses::Responses,
            Self::Messages => &messages::Messages,
        }
    }

    /// What an id begins with when it is made from a request id.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "chatcmpl-",
            Self::Completions => "cmpl-",
            Self::Responses => "resp_",
        }
    }
}

/// Everything in an answer that is known before the first token.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The API that was asked.
    pub api: Api,
    /// The id, with its prefix.
    pub id: String,
    /// The id of the message in it (Responses).
    pub item_id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's served name.
    pub model: String,
    /// Prompt tokens, over all prompts.
    pub prompt_tokens: u32,
    /// One answer per choice.
    pub answers: Vec<Answer>,
    /// Send a usage chunk at the end of a stream.
    pub include_usage: bool,
    /// Send usage with every chunk as well.
    pub continuous_usage: bool,
    /// Echoed by Responses.
    pub temperature: f64,
    /// Echoed by Responses.
    pub top_p: f64,
    /// Echoed by Responses.
    pub max_output_tokens: u32,
}

impl Reply {
    /// The body of an answer that is not a stream.
    pub fn whole(&self, cached_tokens: u32) -> BytesMut {
        let mut out = BytesMut::new();
        self.api.dialect().whole(self, cached_tokens, &mut out);
        out
    }

    fn completion_tokens(&self) -> u32 {
        self.answers.iter().map(|answer| answer.tokens).sum()
    }

    /// The first answer, for the APIs that have one only.
    fn answer(&self) -> Answer {
        self.answers.first().copied().unwrap_or(Answer { seed: 0, tokens: 0, finish: Finish::Stop })
    }
}

/// How far the engine is with an answer.
pub trait Progress {
    /// Tokens produced for one choice.
    fn produced(&self, choice: usize) -> u32;
    /// Prompt tokens that were in the prefix cache.
    fn cached_tokens(&self) -> u32;
}

/// What [`Events::next`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It wrote one event.
    Event,
    /// The engine must produce more tokens first.
    Wait,
    /// The stream has ended.
    End,
}

/// The shapes of one API. Each function writes at most one event and tells whether it did.
trait Dialect {
    /// Opening events that come before the first token.
    fn early(&self) -> usize {
        0
    }
    /// What every event of a stream begins with.
    fn head(&self, _reply: &Reply) -> String {
        String::new()
    }
    /// Opening event `place.number`; false if there are no more.
    fn opening(&self, place: &Place<'_>, out: &mut BytesMut) -> bool;
    /// Tokens as they come; false if they make no event.
    fn part(&self, place: &Place<'_>, part: &Part<'_>, out: &mut BytesMut) -> bool;
    /// Closing event `place.number`; false if there are no more.
    fn closing(&self, place: &Place<'_>, cached_tokens: u32, out: &mut BytesMut) -> bool;
    /// The answer as one document.
    fn whole(&self, reply: &Reply, cached_tokens: u32, out: &mut BytesMut);
}

/// Where in a stream an event stands.
struct Place<'a> {
    reply: &'a Reply,
    head: &'a str,
    /// Events of this stage before it.
    number: usize,
    /// Events of the stream before it.
    sequence: u32,
}

/// New tokens of one choice.
struct Part<'a> {
    choice: usize,
    text: &'a str,
    /// Tokens of this choice, including these.
    tokens: u32,
    finish: Option<Finish>,
}

/// A stream, one event at a time.
#[derive(Debug)]
pub struct Events {
    reply: Reply,
    head: String,
    stage: Stage,
    /// Events written in this stage.
    number: usize,
    /// Events written in all.
    sequence: u32,
    /// Tokens sent of each choice.
    sent: Vec<u32>,
    /// The choice whose turn it is.
    turn: usize,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opening,
    Parts,
    Closing,
    Ended,
}

impl Events {
    /// A stream of which nothing is sent yet.
    pub fn new(reply: Reply) -> Self {
        Self {
            head: reply.api.dialect().head(&reply),
            sent: vec![0; reply.answers.len()],
            reply,
            stage: Stage::Opening,
            number: 0,
            sequence: 0,
            turn: 0,
            text: String::new(),
        }
    }

    /// Appends the next event to `out`, if there is one yet.
    pub fn next(&mut self, progress: &impl Progress, out: &mut BytesMut) -> Next {
        let dialect = self.reply.api.dialect();
        loop {
            let wrote = match self.stage {
                Stage::Opening => {
                    if self.number >= dialect.early() && self.news(progress).is_none() {
                        return Next::Wait;
                    }
                    let wrote = dialect.opening(&self.place(), out);
                    wrote || self.enter(Stage::Parts)
                }
                Stage::Parts => match self.news(progress) {
                    Some(choice) => self.part(choice, progress, out),
                    None if self.is_complete() => self.enter(Stage::Closing),
                    None => return Next::Wait,
                },
                Stage::Closing => {
                    let wrote = dialect.closing(&self.place(), progress.cached_tokens(), out);
                    wrote || self.enter(Stage::Ended)
                }
                Stage::Ended => return Next::End,
            };
            if wrote {
                self.number += 1;
                self.sequence += 1;
                return Next::Event;
            }
        }
    }

    /// Nothing is written by that.
    fn enter(&mut self, stage: Stage) -> bool {
        self.stage = stage;
        self.number = 0;
        false
    }

    fn place(&self) -> Place<'_> {
        let Self { reply, head, number, sequence, .. } = self;
        Place { reply, head, number: *number, sequence: *sequence }
    }

    /// The next choice, in turn, that has tokens to send.
    fn news(&self, progress: &impl Progress) -> Option<usize> {
        let choices = self.sent.len();
        let mut turns = (self.turn..self.turn + choices).map(|turn| turn % choices);
        turns.find(|&choice| progress.produced(choice) > self.sent[choice])
    }

    fn is_complete(&self) -> bool {
        self.sent.iter().zip(&self.reply.answers).all(|(&sent, answer)| sent >= answer.tokens)
    }

    fn part(&mut self, choice: usize, progress: &impl Progress, out: &mut BytesMut) -> bool {
        let answer = self.reply.answers[choice];
        let tokens = progress.produced(choice);
        self.text.clear();
        answer.write(self.sent[choice]..tokens, &mut self.text);
        self.sent[choice] = tokens;
        self.turn = (choice + 1) % self.sent.len();
        let finish = (tokens >= answer.tokens).then_some(answer.finish);
        let part = Part { choice, text: &self.text, tokens, finish };
        self.reply.api.dialect().part(&self.place(), &part, out)
    }
}

/// Appends a template with its `$holes` filled.
fn fill(out: &mut BytesMut, template: &str, holes: &[(&str, &str)]) {
    let mut pieces = template.split('$');
    out.extend_from_slice(pieces.next().unwrap_or_default().as_bytes());
    for piece in pieces {
        let end = piece.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(piece.len());
        let (name, rest) = piece.split_at(end);
        let hole = holes.iter().find(|(hole, _)| *hole == name);
        debug_assert!(hole.is_some(), "nothing to fill ${name} with");
        out.extend_from_slice(hole.map_or("", |(_, value)| value).as_bytes());
        out.extend_from_slice(rest.as_bytes());
    }
}

/// A template with its holes filled, as a text.
fn filled(template: &str, holes: &[(&str, &str)]) -> String {
    let mut out = BytesMut::new();
    fill(&mut out, template, holes);
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends an event without a type.
fn data(out: &mut BytesMut, template: &str, holes: &[(&str, &str)]) {
    out.extend_from_slice(b"data: ");
    fill(out, template, holes);
    out.extend_from_slice(b"\n\n");
}

/// Appends an event with a type.
fn typed(out: &mut BytesMut, event: &str, template: &str, holes: &[(&str, &str)]) {
    fill(out, "event: $event\n", &[("event", event)]);
    data(out, template, holes);
}

/// A text as a JSON string, quotes included.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
