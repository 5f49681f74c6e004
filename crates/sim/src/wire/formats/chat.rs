//! The chat completions format. The role chunks are written with the first token. The last token
//! carries the finish reason. It also carries the fingerprint, unless a usage chunk follows.

use bytes::BytesMut;

use super::openai;
use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::write_data_event;
use crate::wire::wire_format::{ChoiceChunk, EventContext, WireFormat};

const EVENT_PREFIX: &str =
    r#"{"id":$id,"object":"chat.completion.chunk","created":$created,"model":$model,"choices":["#;
const ROLE: &str = r#"$prefix{"index":$index,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]$usage,"prompt_token_ids":null,"prompt_text":null}"#;
const CONTENT: &str = r#"$prefix{"index":$index,"delta":{"content":"$text"},"logprobs":null,"finish_reason":null,"token_ids":null}]$usage}"#;
const FINISH: &str = r#"$prefix{"index":$index,"delta":{$content},"logprobs":null,"finish_reason":"$finish","stop_reason":null,"token_ids":null}]$usage$fingerprint}"#;
const CONTINUOUS_USAGE: &str = r#","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"completion_tokens_details":{"reasoning_tokens":0}}"#;
const USAGE: &str = r#"$prefix],"usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},"system_fingerprint":"$fingerprint"}"#;
const BODY: &str = r#"{"id":$id,"object":"chat.completion","created":$created,"model":$model,"choices":[$choices],"service_tier":null,"system_fingerprint":"$fingerprint","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":0,"multimodal_tokens":null},"completion_tokens_details":{"reasoning_tokens":0}},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#;
const CHOICE: &str = r#"{"index":$index,"message":{"role":"assistant","content":$content,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"$finish","stop_reason":null,"token_ids":null,"routed_experts":null}"#;

pub(super) struct ChatFormat;

impl WireFormat for ChatFormat {
    fn shared_text(&self, reply: &SimulatedResponse) -> String {
        openai::render_prefix(EVENT_PREFIX, reply)
    }

    fn write_opening(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool {
        let more = context.stage_index < context.reply.outputs.len();
        if more {
            let index = context.stage_index.to_string();
            let usage = continuous_usage(context.reply, 0);
            write_data_event(
                out,
                ROLE,
                &[("prefix", context.shared_text), ("index", &index), ("usage", &usage)],
            );
        }
        more
    }

    fn write_chunk(
        &self,
        context: &EventContext<'_>,
        chunk: &ChoiceChunk<'_>,
        out: &mut BytesMut,
    ) -> bool {
        let index = chunk.choice.to_string();
        let index = ("index", index.as_str());
        let usage = continuous_usage(context.reply, chunk.tokens);
        let (prefix, usage) = (("prefix", context.shared_text), ("usage", usage.as_str()));
        let Some(finish) = chunk.finish else {
            write_data_event(out, CONTENT, &[prefix, index, ("text", chunk.text), usage]);
            return true;
        };
        let content = match chunk.text {
            "" => String::new(),
            text => format!(r#""content":"{text}""#),
        };
        let finish = ("finish", finish.reason());
        let fingerprint = openai::finish_fingerprint(context.reply);
        write_data_event(
            out,
            FINISH,
            &[prefix, index, ("content", &content), finish, usage, fingerprint],
        );
        true
    }

    fn write_closing(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool {
        openai::write_closing(USAGE, context, out)
    }

    fn write_body(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut) {
        openai::write_body(BODY, CHOICE, reply, cached_tokens, out);
    }
}

fn continuous_usage(reply: &SimulatedResponse, completion: u32) -> String {
    openai::continuous_usage(CONTINUOUS_USAGE, reply, completion)
}
