//! The Anthropic Messages format. `message_start` is written with the first token and counts the whole prompt.
//! `message_delta` counts only prompt tokens that were not cached.

use bytes::BytesMut;

use crate::text::SimulatedFinishReason;
use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::{fill, quoted, write_typed_event};
use crate::wire::wire_format::{ChoiceChunk, EventContext, WireFormat};

const MESSAGE_START: &str = r#"{"type":"message_start","message":{"id":$id,"type":"message","role":"assistant","content":[],"model":$model,"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":$input,"output_tokens":0}}}"#;
const BLOCK_START: &str =
    r#"{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}"#;
const DELTA: &str =
    r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"$text"},"index":0}"#;
const BLOCK_STOP: &str = r#"{"type":"content_block_stop","index":0}"#;
const MESSAGE_DELTA: &str = r#"{"type":"message_delta","delta":{"stop_reason":"$stop","stop_sequence":null},"usage":{"input_tokens":$input,"output_tokens":$output,"cache_creation_input_tokens":0,"cache_read_input_tokens":$cached}}"#;
const MESSAGE_STOP: &str = r#"{"type":"message_stop"}"#;
const BODY: &str = r#"{"id":$id,"type":"message","role":"assistant","content":[{"type":"text","text":$text}],"model":$model,"stop_reason":"$stop","usage":{"input_tokens":$input,"output_tokens":$output,"cache_creation_input_tokens":0,"cache_read_input_tokens":$cached}}"#;

pub(super) struct MessagesFormat;

impl WireFormat for MessagesFormat {
    fn write_opening(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool {
        let reply = context.reply;
        match context.stage_index {
            0 => {
                let id = quoted(&reply.id);
                let model = quoted(&reply.model);
                let input = reply.prompt_tokens.to_string();
                let values = [("id", &*id), ("model", &*model), ("input", &*input)];
                write_typed_event(out, "message_start", MESSAGE_START, &values);
            }
            1 => write_typed_event(out, "content_block_start", BLOCK_START, &[]),
            _ => return false,
        }
        true
    }

    fn write_chunk(
        &self,
        _context: &EventContext<'_>,
        chunk: &ChoiceChunk<'_>,
        out: &mut BytesMut,
    ) -> bool {
        if !chunk.text.is_empty() {
            write_typed_event(out, "content_block_delta", DELTA, &[("text", chunk.text)]);
        }
        !chunk.text.is_empty()
    }

    fn write_closing(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool {
        match context.stage_index {
            0 => write_typed_event(out, "content_block_stop", BLOCK_STOP, &[]),
            1 => {
                let usage = UsageCounts::new(context.reply, context.cached_tokens);
                let values = closing_values(context.reply, &usage);
                write_typed_event(out, "message_delta", MESSAGE_DELTA, &values);
            }
            2 => write_typed_event(out, "message_stop", MESSAGE_STOP, &[]),
            _ => return false,
        }
        true
    }

    fn write_body(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut) {
        let id = quoted(&reply.id);
        let model = quoted(&reply.model);
        let text = quoted(&reply.first_output().text());
        let usage = UsageCounts::new(reply, cached_tokens);
        let mut values = closing_values(reply, &usage).to_vec();
        values.extend([("id", &*id), ("model", &*model), ("text", &*text)]);
        fill(out, BODY, &values);
    }
}

/// Token counts as text.
struct UsageCounts {
    input: String,
    output: String,
    cached: String,
}

impl UsageCounts {
    fn new(reply: &SimulatedResponse, cached: u32) -> Self {
        Self {
            input: reply.prompt_tokens.saturating_sub(cached).to_string(),
            output: reply.completion_tokens().to_string(),
            cached: cached.to_string(),
        }
    }
}

/// The values that are known at the end of a response.
fn closing_values<'a>(
    reply: &SimulatedResponse,
    usage: &'a UsageCounts,
) -> [(&'static str, &'a str); 4] {
    let stop = match reply.first_output().finish {
        SimulatedFinishReason::Stop => "end_turn",
        SimulatedFinishReason::Length => "max_tokens",
    };
    [
        ("stop", stop),
        ("input", &usage.input),
        ("output", &usage.output),
        ("cached", &usage.cached),
    ]
}
