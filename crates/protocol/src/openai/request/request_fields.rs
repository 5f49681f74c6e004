//! Reads from a JSON request body the fields that the gateway acts on or reports.
//!
//! The gateway forwards the bytes that the client sent, so the body is not parsed into a document that is
//! written again.

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
    /// The edit that requests usage at the end of the stream. `None`: the client requests usage itself,
    /// requests no stream, or sends `stream_options` that the backend will reject.
    pub usage_splice: Option<Splice>,
    /// The edit that requests continuous usage, if the client requests only the usage event. `None`: the client
    /// does not request usage, or the body has `continuous_usage_stats`.
    pub continuous_usage_splice: Option<Splice>,
    /// The client's limit of generated tokens: the first of `max_completion_tokens`, `max_tokens` and
    /// `max_output_tokens` that the body has.
    pub max_tokens: Option<u64>,
    /// `n`: the number of choices that the client requests.
    pub n: Option<u64>,
    /// Positions of the prompt in the body.
    pub prompt: PromptSpans,
    /// Position of `cache_salt` in the body.
    pub cache_salt: CacheSaltSpan,
    /// The engine-control fields that the request uses.
    pub controls: Vec<UsedControl>,
    /// `prompt_cache_key`: requests with one key probably share a prefix.
    pub cache_key: Option<Box<str>>,
    /// Sampling and output parameters.
    pub parameters: GenerationParameters,
    /// The user, the session and the conversation that the client names.
    pub identity: IdentityFields,
    /// Whether the request creates or uses state at its backend, such as a stored response or a KV
    /// transfer. Such a request is executed at most once.
    pub is_stateful: bool,
    /// Whether the client forbids storing the response: `store` is exactly `false`.
    pub forbids_store: bool,
    /// Whether the engine may generate the response after it has answered: `background` has another value than
    /// `false`. Some texts and numbers count as `true` for engines.
    pub is_background: bool,
}

/// Position of the value of `cache_salt` in a body. The salt itself is in [`PromptSpans::salt`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CacheSaltSpan {
    /// The field `cache_salt` is missing.
    #[default]
    Absent,
    /// The byte range of a string with its quotes, or of a `null`.
    At(Range<usize>),
    /// The value is neither a string nor `null`.
    WrongType,
}

/// The path of a field and its row in [`REQUEST_FIELDS`]. The row of an engine-control field is in
/// [`engine_control::FIELDS`].
#[derive(Debug, Clone, Copy)]
struct FieldRow {
    row: usize,
    field: RequestField,
}

#[derive(Debug, Clone, Copy)]
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
    Message,
    Control,
}

const REQUEST_FIELDS: &[(&str, RequestField)] = &[
    ("model", RequestField::Model),
    ("stream", RequestField::Stream),
    ("stream_options", RequestField::StreamOptions),
    ("stream_options.include_usage", RequestField::IncludeUsage),
    (
        "stream_options.continuous_usage_stats",
        RequestField::ContinuousUsage,
    ),
    ("max_completion_tokens", RequestField::MaxCompletionTokens),
    ("max_tokens", RequestField::MaxTokens),
    ("max_output_tokens", RequestField::MaxOutputTokens),
    ("n", RequestField::N),
    ("tools", RequestField::Prompt(PromptPart::Tools)),
    ("system", RequestField::Prompt(PromptPart::System)),
    (
        "instructions",
        RequestField::Prompt(PromptPart::Instructions),
    ),
    ("messages", RequestField::Prompt(PromptPart::Messages)),
    ("prompt", RequestField::Prompt(PromptPart::Prompt)),
    ("input", RequestField::Prompt(PromptPart::Input)),
    // The prompt field of the API `/inference/v1/generate`.
    ("token_ids", RequestField::Prompt(PromptPart::Prompt)),
    ("prompt_cache_key", RequestField::CacheKey),
    ("cache_salt", RequestField::CacheSalt),
    ("store", RequestField::Store),
    ("background", RequestField::Background),
    (
        "temperature",
        RequestField::Parameter(GenerationParameter::Temperature),
    ),
    ("top_p", RequestField::Parameter(GenerationParameter::TopP)),
    ("top_k", RequestField::Parameter(GenerationParameter::TopK)),
    (
        "frequency_penalty",
        RequestField::Parameter(GenerationParameter::FrequencyPenalty),
    ),
    (
        "presence_penalty",
        RequestField::Parameter(GenerationParameter::PresencePenalty),
    ),
    ("seed", RequestField::Parameter(GenerationParameter::Seed)),
    (
        "response_format.type",
        RequestField::Parameter(GenerationParameter::OutputFormat),
    ),
    (
        "text.format.type",
        RequestField::Parameter(GenerationParameter::OutputFormat),
    ),
    (
        "reasoning_effort",
        RequestField::Parameter(GenerationParameter::Reasoning),
    ),
    (
        "reasoning.effort",
        RequestField::Parameter(GenerationParameter::Reasoning),
    ),
    (
        "previous_response_id",
        RequestField::Parameter(GenerationParameter::PreviousResponseId),
    ),
    (
        "stop",
        RequestField::Parameter(GenerationParameter::StopSequences),
    ),
    (
        "stop[]",
        RequestField::Parameter(GenerationParameter::StopSequences),
    ),
    (
        "stop_sequences",
        RequestField::Parameter(GenerationParameter::StopSequences),
    ),
    (
        "stop_sequences[]",
        RequestField::Parameter(GenerationParameter::StopSequences),
    ),
    ("messages[]", RequestField::Message),
    ("user", RequestField::Identity(IdentityField::User)),
    (
        "safety_identifier",
        RequestField::Identity(IdentityField::SafetyIdentifier),
    ),
    (
        "metadata.user_id",
        RequestField::Identity(IdentityField::MetadataUser),
    ),
    (
        "metadata.session_id",
        RequestField::Identity(IdentityField::MetadataSession),
    ),
    (
        "metadata.conversation_id",
        RequestField::Identity(IdentityField::MetadataConversation),
    ),
    (
        "metadata.thread_id",
        RequestField::Identity(IdentityField::MetadataConversation),
    ),
    (
        "conversation",
        RequestField::Identity(IdentityField::Conversation),
    ),
    (
        "conversation.id",
        RequestField::Identity(IdentityField::Conversation),
    ),
];

/// Types of the tools that vLLM's Responses API runs itself, and that can have side effects.
const SERVER_SIDE_TOOLS: [&[u8]; 2] = [b"\"mcp\"", b"\"code_interpreter\""];

/// With these fields, the gateway does not request continuous usage. The first shows that the client sets
/// `continuous_usage_stats` itself. The others make events list their tokens, which gives the counts and makes
/// events too long to buffer.
const TOKEN_COUNTING_FIELDS: [&[u8]; 3] =
    [b"continuous_usage_stats", b"logprobs", b"return_token_ids"];

/// Length of the two quotes of a JSON string, in bytes.
const QUOTE_BYTES: usize = 2;

/// The paths of all fields. The common fields come first, because the table is searched in order.
static FIELD_PATHS: LazyLock<PathTable<FieldRow>> = LazyLock::new(|| {
    let row_of = |name: &str| REQUEST_FIELDS.iter().position(|(path, _)| *path == name);
    let mut paths = Vec::new();
    for (path, field) in REQUEST_FIELDS {
        // `prompt` and `token_ids` have one row, so that a body with both of them has a duplicate field.
        let name = if *path == "token_ids" {
            "prompt"
        } else {
            *path
        };
        paths.extend(row_of(name).map(|row| (*path, FieldRow { row, field: *field })));
    }
    for (row, control) in engine_control::FIELDS.iter().enumerate() {
        if row_of(control.name).is_none() {
            paths.push((
                control.name,
                FieldRow {
                    row,
                    field: RequestField::Control,
                },
            ));
        }
    }
    PathTable::new(&[("", &paths)])
});

impl RequestFields {
    /// Reads the fields of a complete body.
    ///
    /// Fails if the body is not a JSON object, if a field that the gateway acts on occurs twice, or if `model`
    /// is not a valid string. Another field of a wrong type counts as absent: the backend rejects it.
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
        fields.max_tokens = parser
            .max_completion_tokens
            .or(parser.max_tokens)
            .or(parser.max_output_tokens);
        fields.is_stateful |= fields.parameters.previous_response.is_some();
        if fields.stream {
            fields.usage_splice = Splice::include_usage(body, parser.stream_options);
        }
        if fields.stream && !parser.has_continuous_usage {
            fields.continuous_usage_splice = Splice::continuous_usage(parser.stream_options);
        }
        Ok(fields)
    }

    fn read_model(&mut self, value: JsonValue<'_>, end: usize) -> Result<(), RequestBodyError> {
        let JsonValue::Text(text) = value else {
            return Err(RequestBodyError::WrongType("model"));
        };
        let model = text
            .decode()
            .ok_or(RequestBodyError::InvalidUnicode("model"))?;
        self.model = Some(model.into());
        self.model_slot = Some(ModelSpan::Json(text_range(text, end)));
        Ok(())
    }

    fn read_cache_salt(&mut self, value: JsonValue<'_>, end: usize) {
        self.cache_salt = match value {
            JsonValue::Null => CacheSaltSpan::At(end - "null".len()..end),
            JsonValue::Text(text) => {
                self.prompt.salt = text.decode().map(Into::into);
                CacheSaltSpan::At(text_range(text, end))
            }
            _ => CacheSaltSpan::WrongType,
        };
    }

    /// Whether the request may have side effects besides its response, so that the gateway executes it at most
    /// once. Also true if the name of a tool that the backend runs occurs anywhere in the body: its position is
    /// not checked.
    pub fn has_effects(&self, body: &[u8]) -> bool {
        let has_tool = || {
            SERVER_SIDE_TOOLS
                .iter()
                .any(|name| memmem::find(body, name).is_some())
        };
        self.is_stateful || has_tool()
    }

    /// Whether the text `"tools"` occurs anywhere in the body.
    pub fn has_tools(body: &[u8]) -> bool {
        memmem::find(body, b"\"tools\"").is_some()
    }

    /// Whether the body contains, at any position, the name of a field with which events list or count their
    /// tokens.
    pub fn has_counting_field(body: &[u8]) -> bool {
        TOKEN_COUNTING_FIELDS
            .iter()
            .any(|name| memmem::find(body, name).is_some())
    }
}

/// The state of the parser of a body between two fields.
#[derive(Default)]
struct FieldParser {
    /// Bit `i` is set once the field in row `i` of [`REQUEST_FIELDS`] has been read, so that
    /// duplicates are detected.
    seen_fields: u32,
    /// Bit `i` is set once the field in row `i` of [`engine_control::FIELDS`] has been read.
    seen_controls: u32,
    max_completion_tokens: Option<u64>,
    max_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    stream_options: StreamOptions,
    /// Whether the body has `stream_options.continuous_usage_stats`.
    has_continuous_usage: bool,
    error: Option<RequestBodyError>,
}

impl FieldParser {
    fn read_field(
        &mut self,
        found: FieldRow,
        value: JsonValue<'_>,
        end: usize,
        fields: &mut RequestFields,
    ) {
        if let RequestField::Prompt(part) = found.field {
            fields.prompt.read(part, value, end);
        }
        if matches!(value, JsonValue::End { .. }) {
            return;
        }
        match found.field {
            RequestField::Parameter(parameter) => fields.parameters.read(parameter, value),
            RequestField::Identity(field) => fields.identity.read(field, value),
            RequestField::Message => {
                fields.identity.messages += u64::from(value == JsonValue::Object);
            }
            RequestField::Control => self.read_control(found.row, value, end, fields),
            _ => {
                let bit = 1 << found.row;
                if self.seen_fields & bit != 0 {
                    let name = REQUEST_FIELDS[found.row].0;
                    self.error
                        .get_or_insert(RequestBodyError::DuplicateField(name));
                }
                self.seen_fields |= bit;
                self.read_unique_field(found.field, value, end, fields);
            }
        }
    }

    /// Reads a field that a body must not have twice.
    fn read_unique_field(
        &mut self,
        field: RequestField,
        value: JsonValue<'_>,
        end: usize,
        fields: &mut RequestFields,
    ) {
        match field {
            RequestField::StreamOptions
            | RequestField::IncludeUsage
            | RequestField::ContinuousUsage => {
                self.has_continuous_usage |= matches!(field, RequestField::ContinuousUsage);
                self.stream_options = self.stream_options.updated_with(field, value, end);
            }
            RequestField::CacheSalt => fields.read_cache_salt(value, end),
            _ if value == JsonValue::Null => {}
            RequestField::Model => {
                if let Err(error) = fields.read_model(value, end) {
                    self.error.get_or_insert(error);
                }
            }
            // Another type is left to the backend, which rejects it with its own message.
            RequestField::Stream => fields.stream = value == JsonValue::Bool(true),
            RequestField::MaxCompletionTokens => self.max_completion_tokens = value.as_count(),
            RequestField::MaxTokens => self.max_tokens = value.as_count(),
            RequestField::MaxOutputTokens => self.max_output_tokens = value.as_count(),
            RequestField::N => fields.n = value.as_count(),
            RequestField::CacheKey => fields.cache_key = value.as_text().map(Into::into),
            RequestField::Store if value == JsonValue::Bool(false) => fields.forbids_store = true,
            RequestField::Store => fields.is_stateful |= value == JsonValue::Bool(true),
            RequestField::Background => {
                fields.is_background = value != JsonValue::Bool(false);
                fields.is_stateful |= fields.is_background;
            }
            // `read_field` reads these fields.
            RequestField::Prompt(_)
            | RequestField::Parameter(_)
            | RequestField::Identity(_)
            | RequestField::Message
            | RequestField::Control => {}
        }
    }

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
            self.error
                .get_or_insert(RequestBodyError::DuplicateField(control.name));
        }
        self.seen_controls |= bit;
        let is_used = match value {
            JsonValue::Null => false,
            // 0 is the default priority of vLLM. Some clients always send it.
            JsonValue::Number(b"0") => control.permission != Permission::Priority,
            _ => true,
        };
        if is_used {
            let transfers = [Permission::KvTransfer, Permission::EcTransfer];
            fields.is_stateful |= transfers.contains(&control.permission);
            let text = if let JsonValue::Text(text) = value {
                Some(text_range(text, end))
            } else {
                None
            };
            fields.controls.push(UsedControl { control, text });
        }
    }
}

/// The byte range of a string that ends at `end`, with its quotes.
fn text_range(text: JsonText<'_>, end: usize) -> Range<usize> {
    end - text.len() - QUOTE_BYTES..end
}

impl StreamOptions {
    /// Returns the state after `value`, the value of `stream_options` or of one of its members.
    fn updated_with(self, field: RequestField, value: JsonValue<'_>, end: usize) -> Self {
        match (self, field, value) {
            (Self::Absent, RequestField::StreamOptions, JsonValue::Null) => Self::Null(end),
            (Self::Absent, RequestField::StreamOptions, JsonValue::Object) => Self::Object(end),
            (Self::Object(_), RequestField::IncludeUsage, JsonValue::Bool(false)) => {
                Self::Excluded {
                    end,
                    len: "false".len(),
                }
            }
            (Self::Object(_), RequestField::IncludeUsage, JsonValue::Null) => Self::Excluded {
                end,
                len: "null".len(),
            },
            (Self::Object(_), RequestField::IncludeUsage, JsonValue::Bool(true)) => {
                Self::Included(end)
            }
            (same, RequestField::ContinuousUsage, JsonValue::Bool(false) | JsonValue::Null) => same,
            _ => Self::Unchanged,
        }
    }
}
