//! Peeks at the body of a request for the few fields that the gateway acts on or reports. The
//! body itself is never taken apart: what is forwarded are the bytes that came.

use super::control::{self, Permission, Used};
use super::parameters::{Parameter, Parameters};
pub use super::peek_error::PeekError;
use super::prompt::{Part, PromptSpans};
use super::splice::{Slot, Splice, StreamOptions};
use crate::json::{Paths, Scanner, Text, Value};
use memchr::memmem;
use std::ops::Range;
use std::sync::LazyLock;

/// What a request asks for. Absent fields are absent in the body.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Peek {
    /// The model, as the client wrote it.
    pub model: Option<Box<str>>,
    /// Where it stands.
    pub model_slot: Option<Slot>,
    /// The client wants a stream: `stream` is literally `true`.
    pub stream: bool,
    /// The edit that makes a stream end with its usage. `None`: the client asks for it itself, or
    /// for no stream.
    pub usage_splice: Option<Splice>,
    /// The limit of generated tokens: `max_completion_tokens`, else `max_tokens`, else
    /// `max_output_tokens`.
    pub max_tokens: Option<u64>,
    /// How many choices.
    pub n: Option<u64>,
    /// Where its prompt stands.
    pub prompt: PromptSpans,
    /// Where `cache_salt` stands.
    pub cache_salt: SaltSlot,
    /// The engine-control fields that it uses.
    pub controls: Vec<Used>,
    /// `prompt_cache_key`: requests with the same one are likely to share a prefix.
    pub cache_key: Option<Box<str>>,
    /// How the answer is to be generated.
    pub parameters: Parameters,
    /// It leaves something behind at its replica, or goes on from what is there: it cannot be sent
    /// to another one once this one has had it.
    pub is_stateful: bool,
}

/// Where the value of `cache_salt` stands in a body. The salt itself is in [`PromptSpans::salt`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SaltSlot {
    /// The body has none.
    #[default]
    Absent,
    /// A text with its quotes, or a `null`.
    At(Range<usize>),
    /// It is neither.
    WrongType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Model,
    Stream,
    StreamOptions,
    IncludeUsage,
    ContinuousUsage,
    MaxCompletionTokens,
    MaxTokens,
    MaxOutputTokens,
    N,
    Prompt(Part),
    CacheKey,
    CacheSalt,
    Store,
    Background,
    Parameter(Parameter),
    /// A row of [`control::FIELDS`].
    Control(u8),
}

const FIELDS: &[(&str, Field)] = &[
    ("model", Field::Model),
    ("stream", Field::Stream),
    ("stream_options", Field::StreamOptions),
    ("stream_options.include_usage", Field::IncludeUsage),
    ("stream_options.continuous_usage_stats", Field::ContinuousUsage),
    ("max_completion_tokens", Field::MaxCompletionTokens),
    ("max_tokens", Field::MaxTokens),
    ("max_output_tokens", Field::MaxOutputTokens),
    ("n", Field::N),
    ("tools", Field::Prompt(Part::Tools)),
    ("system", Field::Prompt(Part::System)),
    ("instructions", Field::Prompt(Part::Instructions)),
    ("messages", Field::Prompt(Part::Messages)),
    ("prompt", Field::Prompt(Part::Prompt)),
    ("input", Field::Prompt(Part::Input)),
    ("prompt_cache_key", Field::CacheKey),
    ("cache_salt", Field::CacheSalt),
    ("store", Field::Store),
    ("background", Field::Background),
    ("temperature", Field::Parameter(Parameter::Temperature)),
    ("top_p", Field::Parameter(Parameter::TopP)),
    ("top_k", Field::Parameter(Parameter::TopK)),
    ("frequency_penalty", Field::Parameter(Parameter::FrequencyPenalty)),
    ("presence_penalty", Field::Parameter(Parameter::PresencePenalty)),
    ("seed", Field::Parameter(Parameter::Seed)),
    ("response_format.type", Field::Parameter(Parameter::OutputFormat)),
    ("text.format.type", Field::Parameter(Parameter::OutputFormat)),
    ("reasoning_effort", Field::Parameter(Parameter::Reasoning)),
    ("reasoning.effort", Field::Parameter(Parameter::Reasoning)),
    ("previous_response_id", Field::Parameter(Parameter::PreviousResponse)),
];

/// The types of tools that vLLM's Responses run by themselves.
const SERVER_TOOLS: [&[u8]; 2] = [b"\"mcp\"", b"\"code_interpreter\""];

/// Fields that make the counts of every event unwelcome or unnecessary: the client decides about
/// them itself, or its events list their tokens and can be too long to hold back.
const COUNTING_FIELDS: [&[u8]; 3] = [b"continuous_usage_stats", b"logprobs", b"return_token_ids"];

/// Bytes around a text.
const QUOTES: usize = 2;

/// The rows of the control table come last, so that the usual fields are found before them.
static PATHS: LazyLock<Paths<Field>> = LazyLock::new(|| {
    let rows =
        (0..).zip(&control::FIELDS).map(|(row, control)| (control.name, Field::Control(row)));
    let is_here = |name| FIELDS.iter().any(|(known, _)| *known == name);
    let controls: Vec<_> = rows.filter(|(name, _)| !is_here(*name)).collect();
    Paths::new(&[FIELDS, &controls])
});

impl Peek {
    /// Peeks at a whole body.
    pub fn of(body: &[u8]) -> Result<Self, PeekError> {
        let mut peek = Self::default();
        let mut seen = Seen {
            fields: 0,
            controls: 0,
            limits: [None; 3],
            options: StreamOptions::Absent,
            error: None,
        };
        let mut scanner = Scanner::default();
        scanner.locate(&PATHS, body, |field, value, end| seen.read(field, value, end, &mut peek));
        if let Some(error) = seen.error {
            return Err(error);
        }
        if !scanner.is_complete() || body.trim_ascii_start().first() != Some(&b'{') {
            return Err(PeekError::of_json(body));
        }
        let [completion, tokens, output] = seen.limits;
        peek.max_tokens = completion.or(tokens).or(output);
        peek.is_stateful |= peek.parameters.previous_response.is_some();
        peek.usage_splice = Splice::of(body, seen.options).filter(|_| peek.stream);
        Ok(peek)
    }

    /// Whether a body of this request may have effects beyond its answer, so that it is sent once.
    /// Taken for granted where the names of tools stand that the server runs itself.
    pub fn has_effects(&self, body: &[u8]) -> bool {
        let names_tool = || SERVER_TOOLS.iter().any(|name| memmem::find(body, name).is_some());
        self.is_stateful || names_tool()
    }

    /// Whether a body of this request names one of the fields with which events count their
    /// tokens, wherever in the body.
    pub fn names_counting_field(body: &[u8]) -> bool {
        COUNTING_FIELDS.iter().any(|name| memmem::find(body, name).is_some())
    }
}

struct Seen {
    /// A bit for each of [`FIELDS`].
    fields: u32,
    /// A bit for each row of the control table.
    controls: u32,
    limits: [Option<u64>; 3],
    options: StreamOptions,
    error: Option<PeekError>,
}

impl Seen {
    fn read(&mut self, field: Field, value: Value<'_>, end: usize, peek: &mut Peek) {
        if let Field::Prompt(part) = field {
            peek.prompt.read(part, value, end);
        }
        if value == Value::End {
            return;
        }
        if let Field::Parameter(parameter) = field {
            peek.parameters.read(parameter, value);
            return;
        }
        if let Field::Control(row) = field {
            self.read_control(row, value, end, peek);
            return;
        }
        let bit = 1 << field.number();
        if self.fields & bit != 0 {
            self.error.get_or_insert(PeekError::Duplicate(field.name()));
        }
        self.fields |= bit;
        match (field, value) {
            (Field::StreamOptions | Field::IncludeUsage | Field::ContinuousUsage, value) => {
                self.options = self.options.with(field, value, end);
            }
            (Field::CacheSalt, Value::Null) => {
                peek.cache_salt = SaltSlot::At(end - "null".len()..end);
            }
            (Field::Prompt(_) | Field::Parameter(_) | Field::Control(_), _) | (_, Value::Null) => {}
            (Field::Model, Value::Text(text)) => {
                let Some(model) = text.decode() else {
                    self.error.get_or_insert(PeekError::NotText(field.name()));
                    return;
                };
                peek.model = Some(model.into());
                peek.model_slot = Some(Slot::Json(span(text, end)));
            }
            (Field::Model, _) => {
                self.error.get_or_insert(PeekError::WrongType(field.name()));
            }
            // The server refuses other types itself, with its own words.
            (Field::Stream, value) => peek.stream = value == Value::Bool(true),
            (Field::MaxCompletionTokens, value) => self.limits[0] = value.as_count(),
            (Field::MaxTokens, value) => self.limits[1] = value.as_count(),
            (Field::MaxOutputTokens, value) => self.limits[2] = value.as_count(),
            (Field::N, value) => peek.n = value.as_count(),
            (Field::CacheKey, value) => peek.cache_key = value.as_text().map(Into::into),
            (Field::CacheSalt, Value::Text(text)) => {
                peek.prompt.salt = text.decode().map(Into::into);
                peek.cache_salt = SaltSlot::At(span(text, end));
            }
            (Field::CacheSalt, _) => peek.cache_salt = SaltSlot::WrongType,
            (Field::Store | Field::Background, value) => {
                peek.is_stateful |= value == Value::Bool(true);
            }
        }
    }

    /// Reads a field of the control table.
    fn read_control(&mut self, row: u8, value: Value<'_>, end: usize, peek: &mut Peek) {
        let control = control::at(row);
        let bit = 1 << row;
        if self.controls & bit != 0 {
            self.error.get_or_insert(PeekError::Duplicate(control.name));
        }
        self.controls |= bit;
        let is_used = match value {
            Value::Null => false,
            // vLLM's default, which some clients always send.
            Value::Number(b"0") => control.permission != Permission::Priority,
            _ => true,
        };
        if is_used {
            let transfers = [Permission::KvTransfer, Permission::EcTransfer];
            peek.is_stateful |= transfers.contains(&control.permission);
            let text = if let Value::Text(text) = value { Some(span(text, end)) } else { None };
            peek.controls.push(Used { control, text });
        }
    }
}

/// Where a text that ends at `end` stands, with its quotes.
fn span(text: Text<'_>, end: usize) -> Range<usize> {
    end - text.len() - QUOTES..end
}

impl StreamOptions {
    /// What is known when one more value of them has been read.
    fn with(self, field: Field, value: Value<'_>, end: usize) -> Self {
        match (self, field, value) {
            (Self::Absent, Field::StreamOptions, Value::Null) => Self::Null(end),
            (Self::Absent, Field::StreamOptions, Value::Object) => Self::Object(end),
            (Self::Object(_), Field::IncludeUsage, Value::Bool(false)) => {
                Self::Excluded { end, len: "false".len() }
            }
            (Self::Object(_), Field::IncludeUsage, Value::Null) => {
                Self::Excluded { end, len: "null".len() }
            }
            (known, Field::ContinuousUsage, Value::Bool(false) | Value::Null) => known,
            _ => Self::LeaveAlone,
        }
    }
}

impl Field {
    /// Its place in the table.
    fn number(self) -> usize {
        FIELDS.iter().position(|(_, field)| *field == self).unwrap_or(0)
    }

    fn name(self) -> &'static str {
        FIELDS[self.number()].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found_wherever_they_stand() {
        let body = br#" {"messages":[{"role":"user","content":"{\"model\":\"no\"}","n":7}],
            "stream_options":{"include_usage":true},"n":2,"max_tokens":5,
            "max_completion_tokens":9,"stream":true,"model":"q\u0077en","metadata":{"model":"no"}}"#;
        let at = memmem::find(body, br#""q\u0077en""#).unwrap();
        let expected = Peek {
            model: Some("qwen".into()),
            model_slot: Some(Slot::Json(at..at + r#""q\u0077en""#.len())),
            stream: true,
            usage_splice: None,
            max_tokens: Some(9),
            n: Some(2),
            ..Peek::default()
        };
        let found = Peek::of(body).map(|peek| Peek { prompt: PromptSpans::default(), ..peek });
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn absent_and_null_are_the_same() {
        let nulls = br#"{"model":null,"stream":null,"n":null,"max_tokens":null}"#;
        assert_eq!(Peek::of(nulls), Ok(Peek::default()));
        assert_eq!(Peek::of(b"{}"), Ok(Peek::default()));
    }

    #[test]
    fn what_has_a_state_at_its_replica_is_told_from_what_has_not() {
        for body in [
            r#"{"store":true}"#,
            r#"{"background":true}"#,
            r#"{"previous_response_id":"resp_1"}"#,
            r#"{"kv_transfer_params":{"do_remote_prefill":true}}"#,
            r#"{"tools":[{"type":"mcp","server_url":"http://a"}]}"#,
        ] {
            let body = body.as_bytes();
            assert!(Peek::of(body).unwrap().has_effects(body), "{body:?}");
        }
        for body in [r#"{"store":false}"#, r#"{"background":null,"kv_transfer_params":null}"#] {
            let body = body.as_bytes();
            assert!(!Peek::of(body).unwrap().has_effects(body), "{body:?}");
        }
    }

    #[test]
    fn a_request_whose_events_count_their_tokens_anyway_is_recognized() {
        for body in [r#"{"logprobs":true}"#, r#"{"x":{"return_token_ids":true}}"#] {
            assert!(Peek::names_counting_field(body.as_bytes()), "{body}");
        }
        assert!(!Peek::names_counting_field(br#"{"stream_options":{"include_usage":false}}"#));
    }

    #[test]
    fn a_field_that_stands_twice_is_refused() {
        let twice = br#"{"model":"a","model":"b"}"#;
        assert_eq!(Peek::of(twice), Err(PeekError::Duplicate("model")));
        let escaped = br#"{"stream":false,"str\u0065am":true}"#;
        assert_eq!(Peek::of(escaped), Err(PeekError::Duplicate("stream")));
    }

    #[test]
    fn a_model_must_be_a_text() {
        assert_eq!(Peek::of(br#"{"model":{"a":1}}"#), Err(PeekError::WrongType("model")));
        // Python's parser reads each of these as a text that is not empty.
        for model in [&b"\\ud800"[..], b"a\\udc00", b"\\ud800\\u0041", b"\xed\xa0\x80"] {
            let body = [b"{\"model\":\"", model, b"\"}"].concat();
            assert_eq!(Peek::of(&body), Err(PeekError::NotText("model")), "{body:?}");
        }
    }

    #[test]
    fn only_a_literal_true_asks_for_a_stream() {
        for body in [r#"{"stream":"true"}"#, r#"{"stream":1}"#, r#"{"stream":false}"#] {
            assert_eq!(Peek::of(body.as_bytes()).map(|peek| peek.stream), Ok(false), "{body}");
        }
    }
}
