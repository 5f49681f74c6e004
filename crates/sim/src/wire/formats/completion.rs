//! The text completions format. There is no role chunk, and every chunk has a `finish_reason`
//! field.

use bytes::BytesMut;

use super::openai;
use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::{data, quoted};
use crate::wire::wire_format::{ChoiceChunk, EventContext, WireFormat};

const EVENT_PREFIX: &str =
    r#"{"id":$id,"object":"text_completion","created":$created,"model":$model,"choices":["#;
const TEXT: &str = r#"$head{"index":$index,"text":"$text","logprobs":null,"finish_reason":$finish,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]$usage$fingerprint}"#;
const CONTINUOUS_USAGE: &str =
    r#","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion}"#;
const USAGE: &str = r#"$head],"usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached}},"system_fingerprint":"$fingerprint"}"#;
const BODY: &str = r#"{"id":$id,"object":"text_completion","created":$created,"model":$model,"choices":[$choices],"service_tier":null,"system_fingerprint":"$fingerprint","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#;
const CHOICE: &str = r#"{"index":$index,"text":$content,"logprobs":null,"finish_reason":"$finish","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}"#;

pub(super) struct CompletionFormat;

impl WireFormat for CompletionFormat {
    fn head(&self, reply: &SimulatedResponse) -> String {
        openai::head(EVENT_PREFIX, reply)
    }

    fn opening(&self, _place: &EventContext<'_>, _out: &mut BytesMut) -> bool {
        false
    }

    fn part(&self, place: &EventContext<'_>, part: &ChoiceChunk<'_>, out: &mut BytesMut) -> bool {
        let mut index = itoa::Buffer::new();
        let usage = openai::continuous(CONTINUOUS_USAGE, place.reply, part.tokens);
        let (finish, fingerprint) = match part.finish {
            None => ("null".to_owned(), ("fingerprint", "")),
            Some(finish) => (quoted(finish.reason()), openai::finish_fingerprint(place.reply)),
        };
        let values = [
            ("head", place.head),
            ("index", index.format(part.choice)),
            ("text", part.text),
            ("finish", &finish),
            ("usage", &usage),
            fingerprint,
        ];
        data(out, TEXT, &values);
        true
    }

    fn closing(&self, place: &EventContext<'_>, cached_tokens: u32, out: &mut BytesMut) -> bool {
        openai::closing(USAGE, place, cached_tokens, out)
    }

    fn whole(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut) {
        openai::document(BODY, CHOICE, reply, cached_tokens, out);
    }
}
