//! The text completions format. There is no role chunk, and every chunk has a `finish_reason`
//! field.

use bytes::BytesMut;

use super::openai;
use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::{quoted, write_data_event};
use crate::wire::wire_format::{ChoiceChunk, EventContext, WireFormat};

const EVENT_PREFIX: &str =
    r#"{"id":$id,"object":"text_completion","created":$created,"model":$model,"choices":["#;
const TEXT: &str = r#"$prefix{"index":$index,"text":"$text","logprobs":null,"finish_reason":$finish,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]$usage$fingerprint}"#;
const CONTINUOUS_USAGE: &str =
    r#","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion}"#;
const USAGE: &str = r#"$prefix],"usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached}},"system_fingerprint":"$fingerprint"}"#;
const BODY: &str = r#"{"id":$id,"object":"text_completion","created":$created,"model":$model,"choices":[$choices],"service_tier":null,"system_fingerprint":"$fingerprint","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#;
const CHOICE: &str = r#"{"index":$index,"text":$content,"logprobs":null,"finish_reason":"$finish","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}"#;

pub(super) struct CompletionFormat;

impl WireFormat for CompletionFormat {
    fn shared_text(&self, reply: &SimulatedResponse) -> String {
        openai::render_prefix(EVENT_PREFIX, reply)
    }

    fn write_opening(&self, _context: &EventContext<'_>, _out: &mut BytesMut) -> bool {
        false
    }

    fn write_chunk(
        &self,
        context: &EventContext<'_>,
        chunk: &ChoiceChunk<'_>,
        out: &mut BytesMut,
    ) -> bool {
        let index = chunk.choice.to_string();
        let usage = openai::continuous_usage(CONTINUOUS_USAGE, context.reply, chunk.tokens);
        let (finish, fingerprint) = match chunk.finish {
            None => ("null".to_owned(), ("fingerprint", "")),
            Some(finish) => (quoted(finish.reason()), openai::finish_fingerprint(context.reply)),
        };
        let values = [
            ("prefix", context.shared_text),
            ("index", &index),
            ("text", chunk.text),
            ("finish", &finish),
            ("usage", &usage),
            fingerprint,
        ];
        write_data_event(out, TEXT, &values);
        true
    }

    fn write_closing(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool {
        openai::write_closing(USAGE, context, out)
    }

    fn write_body(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut) {
        openai::write_body(BODY, CHOICE, reply, cached_tokens, out);
    }
}
