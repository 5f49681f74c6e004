//! The chat completions format. The role chunks are written with the first token. The last token
//! carries the finish reason. It also carries the fingerprint, unless a usage chunk follows.

use bytes::BytesMut;

use super::openai;
use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::data;
use crate::wire::wire_format::{ChoiceChunk, EventContext, WireFormat};

const EVENT_PREFIX: &str =
    r#"{"id":$id,"object":"chat.completion.chunk","created":$created,"model":$model,"choices":["#;
const ROLE: &str = r#"$head{"index":$index,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]$usage,"prompt_token_ids":null,"prompt_text":null}"#;
const CONTENT: &str = r#"$head{"index":$index,"delta":{"content":"$text"},"logprobs":null,"finish_reason":null,"token_ids":null}]$usage}"#;
const FINISH: &str = r#"$head{"index":$index,"delta":{$content},"logprobs":null,"finish_reason":"$finish","stop_reason":null,"token_ids":null}]$usage$fingerprint}"#;
const CONTINUOUS_USAGE: &str = r#","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"completion_tokens_details":{"reasoning_tokens":0}}"#;
const USAGE: &str = r#"$head],"usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}},"system_fingerprint":"$fingerprint"}"#;
const BODY: &str = r#"{"id":$id,"object":"chat.completion","created":$created,"model":$model,"choices":[$choices],"service_tier":null,"system_fingerprint":"$fingerprint","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":0,"multimodal_tokens":null},"completion_tokens_details":{"reasoning_tokens":0}},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#;
const CHOICE: &str = r#"{"index":$index,"message":{"role":"assistant","content":$content,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"$finish","stop_reason":null,"token_ids":null,"routed_experts":null}"#;

pub(super) struct ChatFormat;

impl WireFormat for ChatFormat {
    fn head(&self, reply: &SimulatedResponse) -> String {
        openai::head(EVENT_PREFIX, reply)
    }

    fn opening(&self, place: &EventContext<'_>, out: &mut BytesMut) -> bool {
        let more = place.number < place.reply.answers.len();
        if more {
            let index = place.number.to_string();
            let usage = continuous(place.reply, 0);
            data(out, ROLE, &[("head", place.head), ("index", &index), ("usage", &usage)]);
        }
        more
    }

    fn part(&self, place: &EventContext<'_>, part: &ChoiceChunk<'_>, out: &mut BytesMut) -> bool {
        let mut index = itoa::Buffer::new();
        let index = ("index", index.format(part.choice));
        let usage = continuous(place.reply, part.tokens);
        let (head, usage) = (("head", place.head), ("usage", usage.as_str()));
        let Some(finish) = part.finish else {
            data(out, CONTENT, &[head, index, ("text", part.text), usage]);
            return true;
        };
        let content = match part.text {
            "" => String::new(),
            text => format!(r#""content":"{text}""#),
        };
        let finish = ("finish", finish.reason());
        let fingerprint = openai::finish_fingerprint(place.reply);
        data(out, FINISH, &[head, index, ("content", &content), finish, usage, fingerprint]);
        true
    }

    fn closing(&self, place: &EventContext<'_>, cached_tokens: u32, out: &mut BytesMut) -> bool {
        openai::closing(USAGE, place, cached_tokens, out)
    }

    fn whole(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut) {
        openai::document(BODY, CHOICE, reply, cached_tokens, out);
    }
}

fn continuous(reply: &SimulatedResponse, completion: u32) -> String {
    openai::continuous(CONTINUOUS_USAGE, reply, completion)
}
