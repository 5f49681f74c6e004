//! Completions: no role chunk, and the finish reason has a place in every chunk.

use bytes::BytesMut;

use super::{Dialect, Part, Place, Reply, data, openai};

const HEAD: &str =
    r#"{"id":$id,"object":"text_completion","created":$created,"model":$model,"choices":["#;
const TEXT: &str = r#"$head{"index":$index,"text":"$text","logprobs":null,"finish_reason":$finish,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]$usage$fingerprint}"#;
const CONTINUOUS: &str =
    r#","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion}"#;
const USAGE: &str = r#"$head],"usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached}},"system_fingerprint":"$fingerprint"}"#;
const WHOLE: &str = r#"{"id":$id,"object":"text_completion","created":$created,"model":$model,"choices":[$choices],"service_tier":null,"system_fingerprint":"$fingerprint","usage":{"prompt_tokens":$prompt,"total_tokens":$total,"completion_tokens":$completion,"prompt_tokens_details":{"cached_tokens":$cached,"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#;
const CHOICE: &str = r#"{"index":$index,"text":$content,"logprobs":null,"finish_reason":"$finish","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}"#;

pub(super) struct Completion;

impl Dialect for Completion {
    fn head(&self, reply: &Reply) -> String {
        openai::head(HEAD, reply)
    }

    fn opening(&self, _place: &Place<'_>, _out: &mut BytesMut) -> bool {
        false
    }

    fn part(&self, place: &Place<'_>, part: &Part<'_>, out: &mut BytesMut) -> bool {
        let mut index = itoa::Buffer::new();
        let usage = openai::continuous(CONTINUOUS, place.reply, part.tokens);
        let (finish, fingerprint) = match part.finish {
            None => ("null".to_owned(), ("fingerprint", "")),
            Some(finish) => {
                (super::quoted(finish.reason()), openai::finish_fingerprint(place.reply))
            }
        };
        let holes = [
            ("head", place.head),
            ("index", index.format(part.choice)),
            ("text", part.text),
            ("finish", &finish),
            ("usage", &usage),
            fingerprint,
        ];
        data(out, TEXT, &holes);
        true
    }

    fn closing(&self, place: &Place<'_>, cached_tokens: u32, out: &mut BytesMut) -> bool {
        openai::closing(USAGE, place, cached_tokens, out)
    }

    fn whole(&self, reply: &Reply, cached_tokens: u32, out: &mut BytesMut) {
        openai::document(WHOLE, CHOICE, reply, cached_tokens, out);
    }
}
