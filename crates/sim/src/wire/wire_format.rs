//! The interface of a response format.

use super::simulated_response::SimulatedResponse;
use crate::text::SimulatedFinishReason;
use bytes::BytesMut;

/// The format of one API. Each function writes at most one event and returns whether it wrote one.
pub(super) trait WireFormat {
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
pub(super) struct EventContext<'a> {
    pub(super) reply: &'a SimulatedResponse,
    pub(super) head: &'a str,
    /// Number of events written before it in this stage.
    pub(super) number: usize,
    /// Number of events written before it in the stream.
    pub(super) sequence: u32,
}

/// New tokens of one choice.
pub(super) struct ChoiceChunk<'a> {
    pub(super) choice: usize,
    pub(super) text: &'a str,
    /// Number of tokens of this choice, including the new ones.
    pub(super) tokens: u32,
    pub(super) finish: Option<SimulatedFinishReason>,
}
