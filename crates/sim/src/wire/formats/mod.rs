//! The response formats of the APIs.

mod openai;

mod chat;
mod completion;
mod messages;
mod responses;

use super::simulated_response::{GenerationApi, SimulatedResponse};
use super::wire_format::WireFormat;
use bytes::BytesMut;

pub(super) fn wire_format(api: GenerationApi) -> &'static dyn WireFormat {
    match api {
        GenerationApi::Chat => &chat::CHAT,
        GenerationApi::Completions => &completion::COMPLETIONS,
        GenerationApi::Responses => &responses::ResponsesFormat,
        GenerationApi::Messages => &messages::MessagesFormat,
    }
}

impl SimulatedResponse {
    /// Renders the body of a response that is not a stream.
    pub fn render_body(&self, cached_tokens: u32) -> BytesMut {
        let mut out = BytesMut::new();
        wire_format(self.api).write_body(self, cached_tokens, &mut out);
        out
    }
}
