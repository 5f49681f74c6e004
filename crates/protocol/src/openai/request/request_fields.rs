//! Reads from a JSON request body the fields that the gateway acts on or reports.
//!
//! The body is not parsed into a document and not written again: the gateway forwards the bytes
//! that the client sent.

use super::engine_control::{self, Permission, UsedControl};
use super::generation_parameters::{GenerationParameter, GenerationParameters};
use super::identity_fields::{IdentityField, IdentityFields};
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestField {
    Model,
    Stream,
    StreamOptions,
    IncludeUsage,
    ContinuousUsage,
    MaxCompletionTokens,
    MaxTokens,
    MaxOutputTokens,
    N,
    Prompt(PromptPart),
    CacheKey,
    CacheSalt,
    Store,
    Background,
    Parameter(GenerationParameter),
    Identity(IdentityField),
    /// The field in this row of [`engine_control::FIELDS`].
    Control(u8),
}

const REQUEST_FIELDS: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("stream_options", RequestField::StreamOptions),
    ("stream_options.include_usage", RequestField::IncludeUsage),
    ("stream_options.continuous_usage_stats", RequestField::ContinuousUsage),
    ("max_completion_tokens", RequestField::MaxCompletionTokens),
    ("max_tokens", RequestField::MaxTokens),
    ("max_output_tokens", RequestField::MaxOutputTokens),
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
    ("temperature", RequestField::Parameter(GenerationParameter::Temperature)),
    ("top_p", RequestField::Parameter(GenerationParameter::TopP)),
    ("top_k", RequestField::Parameter(GenerationParameter::TopK)),
    ("frequency_penalty", RequestField::Parameter(GenerationParameter::FrequencyPenalty)),
    ("presence_penalty", RequestField::Parameter(GenerationParameter::PresencePenalty)),
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
    ("messages[]", RequestField::Identity(IdentityField::Message)),
    ("user", RequestField::Identity(IdentityField::User)),
    ("safety_identifier", RequestField::Identity(IdentityField::SafetyIdentifier)),
    ("metadata.user_id", RequestField::Identity(IdentityField::MetadataUser)),
    ("metadata.session_id", RequestField::Identity(IdentityField::MetadataSession)),
    ("metadata.conversation_id", RequestField::Identity(IdentityField::MetadataConversation)),
    ("metadata.thread_id", RequestField::Identity(IdentityField::MetadataConversation)),
    ("conversation", RequestField::Identity(IdentityField::Conversation)),
    ("conversation.id", RequestField::Identity(IdentityField::Conversation)),
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

/// The paths of all fields. The common fields come first, because the table is searched in order.
static FIELD_PATHS: LazyLock<PathTable<RequestField>> = LazyLock::new(|| {
    let rows = (0..)
        .zip(&engine_control::FIELDS)
        .map(|(row, control)| (control.name, RequestField::Control(row)));
    let is_request_field = |name| REQUEST_FIELDS.iter().any(|(path, _)| *path == name);
    let controls: Vec<_> = rows.filter(|(name, _)| !is_request_field(*name)).collect();
    PathTable::new(&[REQUEST_FIELDS, &controls])
});

impl RequestFields {
    /// Reads the fields of a complete body.
    ///
    /// Fails if the body is not a JSON object, if a field that the gateway acts on occurs twice, or
    /// if `model` is not a valid string. Other fields of a wrong type are treated as absent: the
    /// backend rejects them.
    pub fn parse(body: &[u8]) -> Result<Self, RequestBodyError> {
        let mut fields = Self::default();
        let mut parser = FieldParser {
            seen_fields: 0,
            seen_controls: 0,
            token_limits: [None; 3],
            stream_options: StreamOptions::Absent,
            error: None,
        };
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
        fields.continuous_usage_splice = continuous_usage_splice
            .filter(|_| fields.stream && !parser.has_read(RequestField::ContinuousUsage));
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
struct FieldParser {
    /// Bit `i` is set once the field in row `i` of [`REQUEST_FIELDS`] has been read, so that
    /// duplicates are detected.
    seen_fields: u32,
    /// Bit `i` is set once the field in row `i` of [`engine_control::FIELDS`] has been read.
    seen_controls: u32,
    /// Values of `max_completion_tokens`, `max_tokens` and `max_output_tokens`.
    token_limits: [Option<u64>; 3],
    stream_options: StreamOptions,
    /// The first error in the body.
    error: Option<RequestBodyError>,
}

impl FieldParser {
    /// Whether the body has this field.
    fn has_read(&self, field: RequestField) -> bool {
        self.seen_fields & (1 << field.index()) != 0
    }

    fn read_field(
        &mut self,
        field: RequestField,
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
        if let RequestField::Parameter(parameter) = field {
            fields.parameters.read(parameter, value);
            return;
        }
        if let RequestField::Identity(identity) = field {
            fields.identity.read(identity, value);
            return;
        }
        if let RequestField::Control(row) = field {
            self.read_control(row, value, end, fields);
            return;
        }
        let bit = 1 << field.index();
        if self.seen_fields & bit != 0 {
            self.error.get_or_insert(RequestBodyError::DuplicateField(field.name()));
        }
        self.seen_fields |= bit;
        match (field, value) {
            (
                RequestField::StreamOptions
                | RequestField::IncludeUsage
                | RequestField::ContinuousUsage,
                value,
            ) => {
                self.stream_options = self.stream_options.updated_with(field, value, end);
            }
            (RequestField::CacheSalt, JsonValue::Null) => {
                fields.cache_salt = CacheSaltSpan::At(end - "null".len()..end);
            }
            (
                RequestField::Prompt(_)
                | RequestField::Parameter(_)
                | RequestField::Identity(_)
                | RequestField::Control(_),
                _,
            )
            | (_, JsonValue::Null) => {}
            (RequestField::Model, JsonValue::Text(text)) => {
                let Some(model) = text.decode() else {
                    self.error.get_or_insert(RequestBodyError::InvalidUnicode(field.name()));
                    return;
                };
                fields.model = Some(model.into());
                fields.model_slot = Some(ModelSpan::Json(text_range(text, end)));
            }
            (RequestField::Model, _) => {
                self.error.get_or_insert(RequestBodyError::WrongType(field.name()));
            }
            // The backend rejects other types with its own message.
            (RequestField::Stream, value) => fields.stream = value == JsonValue::Bool(true),
            (RequestField::MaxCompletionTokens, value) => self.token_limits[0] = value.as_count(),
            (RequestField::MaxTokens, value) => self.token_limits[1] = value.as_count(),
            (RequestField::MaxOutputTokens, value) => self.token_limits[2] = value.as_count(),
            (RequestField::N, value) => fields.n = value.as_count(),
            (RequestField::CacheKey, value) => fields.cache_key = value.as_text().map(Into::into),
            (RequestField::CacheSalt, JsonValue::Text(text)) => {
                fields.prompt.salt = text.decode().map(Into::into);
                fields.cache_salt = CacheSaltSpan::At(text_range(text, end));
            }
            (RequestField::CacheSalt, _) => fields.cache_salt = CacheSaltSpan::WrongType,
            (RequestField::Store | RequestField::Background, value) => {
                fields.is_stateful |= value == JsonValue::Bool(true);
                fields.forbids_store |=
                    field == RequestField::Store && value == JsonValue::Bool(false);
            }
        }
    }

    /// Reads a field of [`engine_control::FIELDS`].
    fn read_control(
        &mut self,
        row: u8,
        value: JsonValue<'_>,
        end: usize,
        fields: &mut RequestFields,
    ) {
        let control = engine_control::field_row(row);
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

impl RequestField {
    /// Index of this field in [`REQUEST_FIELDS`].
    fn index(self) -> usize {
        REQUEST_FIELDS.iter().position(|(_, field)| *field == self).unwrap_or(0)
    }

    fn name(self) -> &'static str {
        REQUEST_FIELDS[self.index()].0
    }
}
