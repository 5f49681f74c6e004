//! vLLM's response formats, byte for byte as the Python front end of 0.32 writes them. The formats
//! are templates that resemble the recordings, with `$name` placeholders for variable values.
//! [`EventWriter`] turns the number of tokens that an engine has produced into the next event; it
//! does no I/O. A client that reads slowly gets several tokens in one event, as with vLLM.

mod chat;
mod completion;
pub mod documents;
mod error;
mod messages;
mod openai;
mod responses;

use bytes::BytesMut;
use serde_json::Value;

pub use self::error::VllmError;
use super::text::{SimulatedFinishReason, SimulatedOutput};

/// The `system_fingerprint` of vLLM 0.32.0.
const SYSTEM_FINGERPRINT: &str = "vllm-0.32.0-f0a48782";

/// The generating APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationApi {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
}

impl GenerationApi {
    fn dialect(self) -> &'static dyn WireFormat {
        match self {
            Self::Chat => &chat::ChatFormat,
            Self::Completions => &completion::CompletionFormat,
            Self::Responses => &responses::ResponsesFormat,
            Self::Messages => &messages::MessagesFormat,
        }
    }

    /// The prefix of an id that is derived from a request id.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "chatcmpl-",
            Self::Completions => "cmpl-",
            Self::Responses => "resp_",
        }
    }
}

/// The values of a response that are known before the first token.
#[derive(Debug, Clone)]
pub struct SimulatedResponse {
    /// The API of the request.
    pub api: GenerationApi,
    /// The id, with its prefix.
    pub id: String,
    /// The id of the message item (Responses).
    pub item_id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The served model name.
    pub model: String,
    /// Number of prompt tokens of all prompts.
    pub prompt_tokens: u32,
    /// One output per choice.
    pub answers: Vec<SimulatedOutput>,
    /// Write a usage chunk at the end of a stream.
    pub include_usage: bool,
    /// Write usage in every chunk.
    pub continuous_usage: bool,
    /// Echoed by Responses.
    pub temperature: f64,
    /// Echoed by Responses.
    pub top_p: f64,
    /// Echoed by Responses.
    pub max_output_tokens: u32,
}

impl SimulatedResponse {
    /// Renders the body of a response that is not a stream.
    pub fn whole(&self, cached_tokens: u32) -> BytesMut {
        let mut out = BytesMut::new();
        self.api.dialect().whole(self, cached_tokens, &mut out);
        out
    }

    fn completion_tokens(&self) -> u32 {
        self.answers.iter().map(|answer| answer.tokens).sum()
    }

    /// The first output, for the APIs that have one choice.
    fn answer(&self) -> SimulatedOutput {
        self.answers.first().copied().unwrap_or(SimulatedOutput {
            seed: 0,
            tokens: 0,
            finish: SimulatedFinishReason::Stop,
        })
    }
}

/// The number of tokens that the engine has produced for a response.
pub trait TokenProgress {
    /// Number of tokens produced for one choice.
    fn produced(&self, choice: usize) -> u32;
    /// Number of prompt tokens found in the prefix cache.
    fn cached_tokens(&self) -> u32;
}

/// The result of [`EventWriter::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextEvent {
    /// One event was written.
    Event,
    /// The engine must produce more tokens first.
    Wait,
    /// The stream has ended.
    End,
}

/// The format of one API. Each function writes at most one event and returns whether it wrote one.
trait WireFormat {
    /// Number of opening events that are written before the first token.
    fn early(&self) -> usize {
        0
    }
    /// The common prefix of every event of a stream.
    fn head(&self, _reply: &SimulatedResponse) -> String {
        String::new()
    }
    /// Writes opening event `place.number`. Returns false if there are no more.
    fn opening(&self, place: &EventContext<'_>, out: &mut BytesMut) -> bool;
    /// Writes new tokens. Returns false if they make no event.
    fn part(&self, place: &EventContext<'_>, part: &ChoiceChunk<'_>, out: &mut BytesMut) -> bool;
    /// Writes closing event `place.number`. Returns false if there are no more.
    fn closing(&self, place: &EventContext<'_>, cached_tokens: u32, out: &mut BytesMut) -> bool;
    /// Writes the body of a response that is not a stream.
    fn whole(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut);
}

/// The position of an event in its stream.
struct EventContext<'a> {
    reply: &'a SimulatedResponse,
    head: &'a str,
    /// Number of events written before it in this stage.
    number: usize,
    /// Number of events written before it in the stream.
    sequence: u32,
}

/// New tokens of one choice.
struct ChoiceChunk<'a> {
    choice: usize,
    text: &'a str,
    /// Number of tokens of this choice, including the new ones.
    tokens: u32,
    finish: Option<SimulatedFinishReason>,
}

/// Writes a stream, one event per call.
#[derive(Debug)]
pub struct EventWriter {
    reply: SimulatedResponse,
    head: String,
    stage: StreamStage,
    /// Number of events written in this stage.
    number: usize,
    /// Number of events written in the stream.
    sequence: u32,
    /// Number of tokens sent for each choice.
    sent: Vec<u32>,
    /// The choice to write next.
    next_choice: usize,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamStage {
    Opening,
    Parts,
    Closing,
    Ended,
}

impl EventWriter {
    /// Starts a stream.
    pub fn new(reply: SimulatedResponse) -> Self {
        Self {
            head: reply.api.dialect().head(&reply),
            sent: vec![0; reply.answers.len()],
            reply,
            stage: StreamStage::Opening,
            number: 0,
            sequence: 0,
            next_choice: 0,
            text: String::new(),
        }
    }

    /// Appends the next event to `out` if it is available.
    pub fn next(&mut self, progress: &impl TokenProgress, out: &mut BytesMut) -> NextEvent {
        let dialect = self.reply.api.dialect();
        loop {
            let wrote = match self.stage {
                StreamStage::Opening => {
                    if self.number >= dialect.early()
                        && self.choice_with_new_tokens(progress).is_none()
                    {
                        return NextEvent::Wait;
                    }
                    let wrote = dialect.opening(&self.event_context(), out);
                    wrote || self.enter_stage(StreamStage::Parts)
                }
                StreamStage::Parts => match self.choice_with_new_tokens(progress) {
                    Some(choice) => self.write_next_chunk(choice, progress, out),
                    None if self.is_complete() => self.enter_stage(StreamStage::Closing),
                    None => return NextEvent::Wait,
                },
                StreamStage::Closing => {
                    let wrote =
                        dialect.closing(&self.event_context(), progress.cached_tokens(), out);
                    wrote || self.enter_stage(StreamStage::Ended)
                }
                StreamStage::Ended => return NextEvent::End,
            };
            if wrote {
                self.number += 1;
                self.sequence += 1;
                return NextEvent::Event;
            }
        }
    }

    /// Enters the next stage. Returns false, because no event is written.
    fn enter_stage(&mut self, stage: StreamStage) -> bool {
        self.stage = stage;
        self.number = 0;
        false
    }

    fn event_context(&self) -> EventContext<'_> {
        let Self { reply, head, number, sequence, .. } = self;
        EventContext { reply, head, number: *number, sequence: *sequence }
    }

    /// Returns the next choice, in turn, that has tokens to send.
    fn choice_with_new_tokens(&self, progress: &impl TokenProgress) -> Option<usize> {
        let choices = self.sent.len();
        let mut turns = (self.next_choice..self.next_choice + choices).map(|turn| turn % choices);
        turns.find(|&choice| progress.produced(choice) > self.sent[choice])
    }

    fn is_complete(&self) -> bool {
        self.sent.iter().zip(&self.reply.answers).all(|(&sent, answer)| sent >= answer.tokens)
    }

    fn write_next_chunk(
        &mut self,
        choice: usize,
        progress: &impl TokenProgress,
        out: &mut BytesMut,
    ) -> bool {
        let answer = self.reply.answers[choice];
        let tokens = progress.produced(choice);
        self.text.clear();
        answer.write(self.sent[choice]..tokens, &mut self.text);
        self.sent[choice] = tokens;
        self.next_choice = (choice + 1) % self.sent.len();
        let finish = (tokens >= answer.tokens).then_some(answer.finish);
        let part = ChoiceChunk { choice, text: &self.text, tokens, finish };
        self.reply.api.dialect().part(&self.event_context(), &part, out)
    }
}

/// Appends a template with its `$name` placeholders replaced by values.
fn fill(out: &mut BytesMut, template: &str, values: &[(&str, &str)]) {
    let mut pieces = template.split('$');
    out.extend_from_slice(pieces.next().unwrap_or_default().as_bytes());
    for piece in pieces {
        let end = piece.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(piece.len());
        let (name, rest) = piece.split_at(end);
        let hole = values.iter().find(|(hole, _)| *hole == name);
        debug_assert!(hole.is_some(), "no value for ${name}");
        out.extend_from_slice(hole.map_or("", |(_, value)| value).as_bytes());
        out.extend_from_slice(rest.as_bytes());
    }
}

/// Returns a template with its placeholders replaced.
fn filled(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = BytesMut::new();
    fill(&mut out, template, values);
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends an event without an event type.
fn data(out: &mut BytesMut, template: &str, values: &[(&str, &str)]) {
    out.extend_from_slice(b"data: ");
    fill(out, template, values);
    out.extend_from_slice(b"\n\n");
}

/// Appends an event with an event type.
fn typed(out: &mut BytesMut, event: &str, template: &str, values: &[(&str, &str)]) {
    fill(out, "event: $event\n", &[("event", event)]);
    data(out, template, values);
}

/// A text as a JSON string with quotes.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
