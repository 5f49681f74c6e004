//! The interface of a response format.

use super::simulated_response::SimulatedResponse;
use crate::text::SimulatedFinishReason;
use bytes::BytesMut;

/// The response format of one API. A stream consists of opening events, chunks and closing events.
/// `write_opening`, `write_chunk` and `write_closing` each write at most one event, and return whether they
/// wrote one.
pub(super) trait WireFormat {
    /// Number of opening events that are written before the engine has produced a token. The first token causes
    /// the further opening events.
    fn early_event_count(&self) -> usize {
        0
    }
    /// Text that all events of a stream share, rendered once per stream: the prefix of every event in the
    /// OpenAI formats, the quoted item id in the Responses format. Empty for Messages.
    fn shared_text(&self, _reply: &SimulatedResponse) -> String {
        String::new()
    }
    /// Writes the opening event with the index `context.stage_index`. Returns false if the format has no such
    /// event.
    fn write_opening(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool;
    /// Writes new tokens of one choice. Returns false if these tokens cause no event.
    fn write_chunk(
        &self,
        context: &EventContext<'_>,
        chunk: &ChoiceChunk<'_>,
        out: &mut BytesMut,
    ) -> bool;
    /// Writes the closing event with the index `context.stage_index`. Returns false if the format has no such
    /// event.
    fn write_closing(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool;
    fn write_body(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut);
}

/// The data of a stream that an event needs, and the position of the event in the stream.
pub(super) struct EventContext<'a> {
    pub(super) reply: &'a SimulatedResponse,
    /// The text that [`WireFormat::shared_text`] returned for the stream.
    pub(super) shared_text: &'a str,
    /// Number of prompt tokens found in the prefix cache.
    pub(super) cached_tokens: u32,
    /// Number of events written before this one in its stage (opening, chunks or closing).
    pub(super) stage_index: usize,
    /// Number of events written earlier in the stream.
    pub(super) sequence_number: u32,
}

pub(super) struct ChoiceChunk<'a> {
    pub(super) choice: usize,
    pub(super) text: &'a str,
    pub(super) tokens: u32,
    /// The finish reason. `None`: the choice has not finished.
    pub(super) finish: Option<SimulatedFinishReason>,
}
