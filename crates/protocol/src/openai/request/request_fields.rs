//! Reads from a JSON request body the fields that the gateway acts on or reports.
//!
//! The body is not parsed into a document and not written again: the gateway forwards the bytes
//! that the client sent.

use super::engine_control::{self, Permission, UsedControl};
use super::generation_parameters::{GenerationParameter, GenerationParameters};
use super::identity_fields::IdentityFields;
use super::prompt::{PromptPart, PromptSpans};
pub use super::request_body_error::RequestBodyError;
use super::splice::{ModelSpan, Splice, StreamOptions};
use crate::json::{JsonScanner, JsonText, JsonValue, PathTable};
use memchr::memmem;
use std::ops::Range;
use std::sync::LazyLock;

/// The fields of a request body that the gateway uses. `None`: the body does not have the field.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestFields {
    /// The model name that the client sent.
    pub model: Option<Box<str>>,
    /// Position of the model name in the body.
    pub model_slot: Option<ModelSpan>,
    /// Whether the client requests a stream: `stream` is exactly `true`.
    pub stream: bool,
    /// The edit that requests usage at the end of the stream. `None`: the client requests usage
    /// itself, or requests no stream, or sends `stream_options` that the backend will reject.
    pub usage_splice: Option<Splice>,
    /// The edit that requests continuous usage in addition to the usage event that the client
    /// requests. `None`: the client does not request usage, or the body has
    /// `continuous_usage_stats`.
    pub continuous_usage_splice: Option<Splice>,
    /// The client's limit of generated tokens: `max_completion_tokens`, else `max_tokens`, else
    /// `max_output_tokens`.
    pub max_tokens: Option<u64>,
    /// `n`: the number of choices that the client requests.
    pub n: Option<u64>,
    /// Positions of the prompt in the body.
    pub prompt: PromptSpans,
    /// Position of `cache_salt` in the body.
    pub cache_salt: CacheSaltSpan,
    /// The engine-control fields that the request uses.
    pub controls: Vec<UsedControl>,
    /// `prompt_cache_key`: requests with the same key are likely to share a prefix.
    pub cache_key: Option<Box<str>>,
    /// Sampling and output parameters.
    pub parameters: GenerationParameters,
    /// The user, the session and the conversation that the client names.
    pub identity: IdentityFields,
    /// Whether the request creates or uses state at its backend, such as a stored response or a KV
    /// transfer. Such a request is executed at most once.
    pub is_stateful: bool,
    /// Whether the client forbids to store the response: `store` is exactly `false`.
    pub forbids_store: bool,
}

/// Position of the value of `cache_salt` in a body. The salt itself is in [`PromptSpans::salt`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CacheSaltSpan {
    /// The body has no `cache_salt`.
    #[default]
    Absent,
    /// The byte range of a string with its quotes, or of a `null`.
    At(Range<usize>),
    /// The value is neither a string nor `null`.
    WrongType,
}

#[derive(Debug, Clone, Copy)]
enum RequestField {
    Model,
    Stream,
    StreamOptions,
    IncludeUsage,
    ContinuousUsage,
    /// A limit of generated tokens, with its index in [`FieldParser::token_limits`].
    TokenLimit(usize),
    N,
    Prompt(PromptPart),
    CacheKey,
    CacheSalt,
    Store,
    Background,
    /// A parameter that is a number. The function borrows its field in the result.
    Real(fn(&mut GenerationParameters) -> &mut Option<f64>),
    Parameter(GenerationParameter),
    /// A field that names the user, the session or the conversation. The function borrows its field
    /// in the result.
    Identity(fn(&mut IdentityFields) -> &mut Option<Box<str>>),
    /// An element of `messages`.
    Message,
    /// A field of [`engine_control::FIELDS`].
    Control,
}

const REQUEST_FIELDS: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("stream_options", RequestField::StreamOptions),
    ("stream_options.include_usage", RequestField::IncludeUsage),
    ("stream_options.continuous_usage_stats", RequestField::ContinuousUsage),
    ("max_completion_tokens", RequestField::TokenLimit(0)),
    ("max_tokens", RequestField::TokenLimit(1)),
    ("max_output_tokens", RequestField::TokenLimit(2)),
    ("n", RequestField::N),
    ("tools", RequestField::Prompt(PromptPart::Tools)),
    ("system", RequestField::Prompt(PromptPart::System)),
    ("instructions", RequestField::Prompt(PromptPart::Instructions)),
    ("messages", RequestField::Prompt(PromptPart::Messages)),
    ("prompt", RequestField::Prompt(PromptPart::Prompt)),
    ("input", RequestField::Prompt(PromptPart::Input)),
    // The prompt of `/inference/v1/generate`.
    ("token_ids", RequestField::Prompt(PromptPart::Prompt)),
    ("prompt_cache_key", RequestField::CacheKey),
    ("cache_salt", RequestField::CacheSalt),
    ("store", RequestField::Store),
    ("background", RequestField::Background),
    ("temperature", RequestField::Real(|parameters| &mut parameters.temperature)),
    ("top_p", RequestField::Real(|parameters| &mut parameters.top_p)),
    ("top_k", RequestField::Real(|parameters| &mut parameters.top_k)),
    ("frequency_penalty", RequestField::Real(|parameters| &mut parameters.frequency_penalty)),
    ("presence_penalty", RequestField::Real(|parameters| &mut parameters.presence_penalty)),
    ("seed", RequestField::Parameter(GenerationParameter::Seed)),
    ("response_format.type", RequestField::Parameter(GenerationParameter::OutputFormat)),
    ("text.format.type", RequestField::Parameter(GenerationParameter::OutputFormat)),
    ("reasoning_effort", RequestField::Parameter(GenerationParameter::Reasoning)),
    ("reasoning.effort", RequestField::Parameter(GenerationParameter::Reasoning)),
    ("previous_response_id", RequestField::Parameter(GenerationParameter::PreviousResponseId)),
    ("stop", RequestField::Parameter(GenerationParameter::StopSequences)),
    ("stop[]", RequestField::Parameter(GenerationParameter::StopSequences)),
    ("stop_sequences", RequestField::Parameter(GenerationParameter::StopSequences)),
    ("stop_sequences[]", RequestField::Parameter(GenerationParameter::StopSequences)),
    ("messages[]", RequestField::Message),
    ("user", RequestField::Identity(|identity| &mut identity.user)),
    ("safety_identifier", RequestField::Identity(|identity| &mut identity.safety_identifier)),
    ("metadata.user_id", RequestField::Identity(|identity| &mut identity.metadata_user)),
    ("metadata.session_id", RequestField::Identity(|identity| &mut identity.metadata_session)),
    (
        "metadata.conversation_id",
        RequestField::Identity(|identity| &mut identity.metadata_conversation),
    ),
    ("metadata.thread_id", RequestField::Identity(|identity| &mut identity.metadata_conversation)),
    ("conversation", RequestField::Identity(|identity| &mut identity.conversation)),
    ("conversation.id", RequestField::Identity(|identity| &mut identity.conversation)),
];

/// Types of the tools that vLLM's Responses API runs itself.
const SERVER_SIDE_TOOLS: [&[u8]; 2] = [b"\"mcp\"", b"\"code_interpreter\""];

/// Fields of requests for which the gateway does not request continuous usage: the client sets
/// `continuous_usage_stats` itself, or the events list their tokens, which already gives the counts
/// and makes events too long to buffer.
const TOKEN_COUNTING_FIELDS: [&[u8]; 3] =
    [b"continuous_usage_stats", b"logprobs", b"return_token_ids"];

/// Length of the two quotes of a JSON string, in bytes.
const QUOTE_BYTES: usize = 2;

/// The paths of all fields, each with its row in [`REQUEST_FIELDS`] or in [`engine_control::FIELDS`]. The
/// common fields come first, because the table is searched in order.
static FIELD_PATHS: LazyLock<PathTable<(usize, RequestField)>> = LazyLock::new(|| {
    let row_of = |name: &str| REQUEST_FIELDS.iter().position(|(path, _)| *path == name);
    // A body has `prompt` or `token_ids`, so both have one row, and a body with both has a duplicate.
    let row = |path: &str| row_of(if path == "token_ids" { "prompt" } else { path });
    let fields =
        REQUEST_FIELDS.iter().filter_map(|(path, field)| Some((*path, (row(path)?, *field))));
    let controls = engine_control::FIELDS.iter().enumerate();
    let controls = controls.filter(|(_, control)| row_of(control.name).is_none());
    let controls = controls.map(|(row, control)| (control.name, (row, RequestField::Control)));
    PathTable::new(&[("", &fields.chain(controls).collect::<Vec<_>>())])
});

impl RequestFields {
    /// Reads the fields of a complete body.
    ///
    /// Fails if the body is not a JSON object, if a field that the gateway acts on occurs twice, or
    /// if `model` is not a valid string. Other fields of a wrong type are treated as absent: the
    /// backend rejects them.
    pub fn parse(body: &[u8]) -> Result<Self, RequestBodyError> {
        let mut fields = Self::default();
        let mut parser = FieldParser::default();
        let mut scanner = JsonScanner::default();
        scanner.scan(&FIELD_PATHS, body, |field, value, end| {
            parser.read_field(field, value, end, &mut fields);
        });
        if let Some(error) = parser.error {
            return Err(error);
        }
        if !scanner.is_complete() || body.trim_ascii_start().first() != Some(&b'{') {
            return Err(RequestBodyError::from_invalid_json(body));
        }
        let [completion, tokens, output] = parser.token_limits;
        fields.max_tokens = completion.or(tokens).or(output);
        fields.is_stateful |= fields.parameters.previous_response.is_some();
        let usage_splice = Splice::include_usage(body, parser.stream_options);
        fields.usage_splice = usage_splice.filter(|_| fields.stream);
        let continuous_usage_splice = Splice::continuous_usage(parser.stream_options);
        fields.continuous_usage_splice =
            continuous_usage_splice.filter(|_| fields.stream && !parser.has_continuous_usage);
        Ok(fields)
    }

    /// Whether the request may have side effects besides its response, so that the gateway executes
    /// it at most once. Also true if the body contains the name of a tool that the backend runs,
    /// anywhere in the body: the exact position is not checked.
    pub fn has_effects(&self, body: &[u8]) -> bool {
        let has_tool = || SERVER_SIDE_TOOLS.iter().any(|name| memmem::find(body, name).is_some());
        self.is_stateful || has_tool()
    }

    /// Whether the body contains the name of the field `tools`, anywhere in the body.
    pub fn has_tools(body: &[u8]) -> bool {
        memmem::find(body, b"\"tools\"").is_some()
    }

    /// Whether the body contains the name of a field with which events list or count their tokens,
    /// anywhere in the body.
    pub fn has_counting_field(body: &[u8]) -> bool {
        TOKEN_COUNTING_FIELDS.iter().any(|name| memmem::find(body, name).is_some())
    }
}

/// The state that the parser of a body keeps between two fields.
#[derive(Default)]
struct FieldParser {
    /// Bit `i` is set once the field in row `i` of [`REQUEST_FIELDS`] has been read, so that
    /// duplicates are detected.
    seen_fields: u32,
    /// Bit `i` is set once the field in row `i` of [`engine_control::FIELDS`] has been read.
    seen_controls: u32,
    /// Values of `max_completion_tokens`, `max_tokens` and `max_output_tokens`.
    token_limits: [Option<u64>; 3],
    stream_options: StreamOptions,
    /// Whether the body has `stream_options.continuous_usage_stats`.
    has_continuous_usage: bool,
    /// The first error in the body.
    error: Option<RequestBodyError>,
}

impl FieldParser {
    fn read_field(
        &mut self,
        (row, field): (usize, RequestField),
        value: JsonValue<'_>,
        end: usize,
        fields: &mut RequestFields,
    ) {
        if let RequestField::Prompt(part) = field {
            fields.prompt.read(part, value, end);
        }
        if matches!(value, JsonValue::End { .. }) {
            return;
        }
        match field {
            RequestField::Real(place) => return *place(&mut fields.parameters) = value.as_real(),
            RequestField::Parameter(parameter) => return fields.parameters.read(parameter, value),
            RequestField::Identity(place) => return fields.identity.read(place, value),
            RequestField::Message => {
                return fields.identity.messages += u64::from(value == JsonValue::Object);
            }
            RequestField::Control => return self.read_control(row, value, end, fields),
            _ => {}
        }
        let name = REQUEST_FIELDS[row].0;
        let bit = 1 << row;
        if self.seen_fields & bit != 0 {
            self.error.get_or_insert(RequestBodyError::DuplicateField(name));
        }
        self.seen_fields |= bit;
        match (field, value) {
            (
                RequestField::StreamOptions
                | RequestField::IncludeUsage
                | RequestField::ContinuousUsage,
                value,
            ) => {
                self.has_continuous_usage |= matches!(field, RequestField::ContinuousUsage);
                self.stream_options = self.stream_options.updated_with(field, value, end);
            }
            (RequestField::CacheSalt, JsonValue::Null) => {
                fields.cache_salt = CacheSaltSpan::At(end - "null".len()..end);
            }
            (_, JsonValue::Null) => {}
            (RequestField::Model, JsonValue::Text(text)) => {
                let Some(model) = text.decode() else {
                    self.error.get_or_insert(RequestBodyError::InvalidUnicode(name));
                    return;
                };
                fields.model = Some(model.into());
                fields.model_slot = Some(ModelSpan::Json(text_range(text, end)));
            }
            (RequestField::Model, _) => {
                self.error.get_or_insert(RequestBodyError::WrongType(name));
            }
            // The backend rejects other types with its own message.
            (RequestField::Stream, value) => fields.stream = value == JsonValue::Bool(true),
            (RequestField::TokenLimit(index), value) => self.token_limits[index] = value.as_count(),
            (RequestField::N, value) => fields.n = value.as_count(),
            (RequestField::CacheKey, value) => fields.cache_key = value.as_text().map(Into::into),
            (RequestField::CacheSalt, JsonValue::Text(text)) => {
                fields.prompt.salt = text.decode().map(Into::into);
                fields.cache_salt = CacheSaltSpan::At(text_range(text, end));
            }
            (RequestField::CacheSalt, _) => fields.cache_salt = CacheSaltSpan::WrongType,
            (RequestField::Store, JsonValue::Bool(false)) => fields.forbids_store = true,
            (RequestField::Store | RequestField::Background, value) => {
                fields.is_stateful |= value == JsonValue::Bool(true);
            }
            // The other fields are read above.
            _ => {}
        }
    }

    /// Reads a field of [`engine_control::FIELDS`].
    fn read_control(
        &mut self,
        row: usize,
        value: JsonValue<'_>,
        end: usize,
        fields: &mut RequestFields,
    ) {
        let control = &engine_control::FIELDS[row];
        let bit = 1 << row;
        if self.seen_controls & bit != 0 {
            self.error.get_or_insert(RequestBodyError::DuplicateField(control.name));
        }
        self.seen_controls |= bit;
        let is_used = match value {
            JsonValue::Null => false,
            // 0 is vLLM's default priority, which some clients always send.
            JsonValue::Number(b"0") => control.permission != Permission::Priority,
            _ => true,
        };
        if is_used {
            let transfers = [Permission::KvTransfer, Permission::EcTransfer];
            fields.is_stateful |= transfers.contains(&control.permission);
            let text =
                if let JsonValue::Text(text) = value { Some(text_range(text, end)) } else { None };
            fields.controls.push(UsedControl { control, text });
        }
    }
}

/// The byte range of a string that ends at `end`, with its quotes.
fn text_range(text: JsonText<'_>, end: usize) -> Range<usize> {
    end - text.len() - QUOTE_BYTES..end
}

impl StreamOptions {
    /// The state after `value`, which is the value of `stream_options` or of one of its members.
    fn updated_with(self, field: RequestField, value: JsonValue<'_>, end: usize) -> Self {
        match (self, field, value) {
            (Self::Absent, RequestField::StreamOptions, JsonValue::Null) => Self::Null(end),
            (Self::Absent, RequestField::StreamOptions, JsonValue::Object) => Self::Object(end),
            (Self::Object(_), RequestField::IncludeUsage, JsonValue::Bool(false)) => {
                Self::Excluded { end, len: "false".len() }
            }
            (Self::Object(_), RequestField::IncludeUsage, JsonValue::Null) => {
                Self::Excluded { end, len: "null".len() }
            }
            (Self::Object(_), RequestField::IncludeUsage, JsonValue::Bool(true)) => {
                Self::Included(end)
            }
            (same, RequestField::ContinuousUsage, JsonValue::Bool(false) | JsonValue::Null) => same,
            _ => Self::Unchanged,
        }
    }
}
