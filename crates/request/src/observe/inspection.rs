//! How the observer parses a body, and the summary of a chunk that it returns.

use std::time::Duration;

/// Summary of the events that one chunk completed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChunkSummary {
    /// Events that contain output.
    pub outputs: u32,
    /// The longest time from the previous output of the same choice to an event of the chunk. `None`: not
    /// measured.
    pub gap: Option<Duration>,
}

/// How a body is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InspectionMode {
    /// Server-sent events.
    Stream,
    Json,
    /// Bytes that are not parsed.
    Opaque,
}

/// Media types of JSON documents. The second is for error descriptions.
const JSON_TYPES: [&str; 2] = ["application/json", "application/problem+json"];

/// The meaning of the first bytes of a body that is not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyStart {
    /// No byte has arrived. Any byte is an answer.
    NotArrived,
    /// Only white space has arrived. The media type of the body is a text type, or missing. `can_be_plain`:
    /// whether text other than JSON can be an answer. `can_be_empty`: whether an empty text can.
    Text {
        can_be_plain: bool,
        can_be_empty: bool,
    },
    Answer,
    /// The body is a text, such as HTML, that is no answer.
    NoAnswer,
}

/// How the lines of an event stream begin.
pub(super) const EVENT_FIELDS: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];
const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// Whether a body of this media type is a text, or may be one because the media type is missing.
pub(super) fn is_text(media_type: &str) -> bool {
    let name = media_type.to_ascii_lowercase();
    name.is_empty() || name.starts_with("text/") || name.ends_with("xml")
}

/// Whether a text begins like JSON or like an event stream. A short first piece may contain only the beginning
/// of a field.
fn begins_like_response(start: &[u8]) -> bool {
    let is_json = matches!(start, [b'{' | b'[' | b'"' | b'-' | b'0'..=b'9', ..]);
    let is_field = |field: &&[u8]| start.starts_with(field) || field.starts_with(start);
    is_json || EVENT_FIELDS.iter().any(is_field)
}

impl BodyStart {
    /// The state after further bytes of the body.
    pub(super) fn after(self, bytes: &[u8]) -> Self {
        match self {
            Self::NotArrived if !bytes.is_empty() => Self::Answer,
            Self::Text { can_be_plain, .. } => {
                let is_blank =
                    |byte: &u8| byte.is_ascii_whitespace() || BYTE_ORDER_MARK.contains(byte);
                let blank = bytes.iter().take_while(|byte| is_blank(byte)).count();
                match bytes.get(blank..).unwrap_or_default() {
                    [] => self,
                    [b'<', ..] => Self::NoAnswer,
                    start if can_be_plain || begins_like_response(start) => Self::Answer,
                    _ => Self::NoAnswer,
                }
            }
            decided => decided,
        }
    }

    /// Whether further bytes can change the state.
    pub(super) fn is_undecided(self) -> bool {
        matches!(self, Self::NotArrived | Self::Text { .. })
    }

    pub(super) fn is_answer_at_end(self) -> bool {
        matches!(
            self,
            Self::Answer
                | Self::Text {
                    can_be_empty: true,
                    ..
                }
        )
    }
}

impl InspectionMode {
    /// The parsing mode for a body of this media type. `is_encoded`: the body has a content encoding.
    pub(super) fn for_body(media_type: &str, is_encoded: bool) -> Self {
        match media_type {
            _ if is_encoded => Self::Opaque,
            name if name.eq_ignore_ascii_case("text/event-stream") => Self::Stream,
            name if JSON_TYPES
                .iter()
                .any(|json| name.eq_ignore_ascii_case(json)) =>
            {
                Self::Json
            }
            _ => Self::Opaque,
        }
    }
}
