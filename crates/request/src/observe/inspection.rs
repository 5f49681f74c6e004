//! How the observer parses a body, and the summary of a chunk that it returns.

use std::time::Duration;

/// Summary of the events that one chunk completed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChunkSummary {
    /// Number of events with output.
    pub outputs: u32,
    /// The longest time from the previous output of the same choice to an event of the chunk.
    /// `None`: no such time was measured.
    pub gap: Option<Duration>,
}

/// How a body is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InspectionMode {
    /// Server-sent events.
    Stream,
    /// One JSON document.
    Json,
    /// Bytes that are not parsed.
    Opaque,
}

impl InspectionMode {
    /// The mode for a body of this media type. `is_encoded`: the body has a content encoding.
    pub(super) fn for_body(media_type: &str, is_encoded: bool) -> Self {
        match media_type {
            _ if is_encoded => Self::Opaque,
            name if name.eq_ignore_ascii_case("text/event-stream") => Self::Stream,
            name if name.eq_ignore_ascii_case("application/json") => Self::Json,
            _ => Self::Opaque,
        }
    }
}
