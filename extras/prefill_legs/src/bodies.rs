//! The bodies of the prefill leg and the decode leg: edited copies of the body of the client's request.

use crate::note::PrefillSkip;
use bytes::Bytes;
use tokenweir_protocol::json::members::{is_set, number, visit_elements, visit_members};
use tokenweir_protocol::openai::{Api, Splice, Usage, read_usage};

/// The field of requests and responses that contains the parameters of the KV cache transfer.
const PARAMETERS: &str = "kv_transfer_params";
/// The `kv_transfer_params` of a prefill leg. In its response, the engine returns them with values instead of
/// `null`.
const PREFILL_PARAMETERS: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// Maximum length of the parameters in the response to a prefill leg, in bytes. It is enough for the numbers
/// of 100,000 KV blocks.
const MAX_PARAMETERS_BYTES: usize = 1 << 20;

/// The values that the gateway reads from the response to a prefill leg.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PrefillResponse {
    /// The parameters for the decode leg, as the engine wrote them. `None`: the engine keeps no blocks for
    /// the decode leg.
    pub(crate) parameters: Option<String>,
    /// Tokens of the prompt, and those that were in the prefix cache.
    pub(crate) usage: Usage,
}

/// The body of the prefill leg of a request. Fails if the request cannot have a prefill leg.
pub(crate) fn prefill_request(api: Option<Api>, body: &[u8]) -> Result<Bytes, PrefillSkip> {
    if !matches!(api, Some(Api::Chat | Api::Completions | Api::Messages)) {
        return Err(PrefillSkip::Api);
    }
    let mut edits = Vec::new();
    let mut can_split = true;
    let mut has_limit = false;
    let mut has_parameters = false;
    let read = visit_members(body, |member| {
        let name = &body[member.name];
        let value = &body[member.value.clone()];
        let replacement = match name {
            b"stream" => "false",
            b"stream_options" => "null",
            b"min_tokens" => "0",
            b"max_tokens" | b"max_completion_tokens" => {
                has_limit = true;
                "1"
            }
            b"kv_transfer_params" => {
                has_parameters = true;
                can_split &= !is_set(value);
                PREFILL_PARAMETERS
            }
            _ => {
                can_split &= allows_split(name, value);
                return;
            }
        };
        edits.push(Splice::replace(member.value, replacement));
    });
    if read.is_none() || !can_split {
        return Err(PrefillSkip::Field);
    }
    let mut missing = Vec::new();
    if !has_limit {
        missing.push(r#""max_tokens":1"#.to_owned());
    }
    if !has_parameters {
        missing.push(format!(r#""{PARAMETERS}":{PREFILL_PARAMETERS}"#));
    }
    if !missing.is_empty() {
        edits.extend(Splice::insert(body, &missing.join(",")));
    }
    Ok(Splice::apply(&edits, body))
}

/// The body of the decode leg of a request, with the parameters from the response to its prefill leg. `None`:
/// `body` is no JSON object.
pub(crate) fn decode_request(body: &[u8], parameters: &str) -> Option<Bytes> {
    let edit = Splice::set(body, PARAMETERS, parameters)?;
    Some(Splice::apply([&edit], body))
}

/// Whether a request with this field can be split into a prefill leg and a decode leg. A request can be split
/// if it asks for one sequence from one prompt, and if the KV cache of the prompt is enough to generate the
/// first token.
fn allows_split(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"n" | b"best_of" => !is_set(value) || number(value) == Some(1.0),
        b"use_beam_search"
        | b"echo"
        | b"prompt_logprobs"
        | b"prompt_embeds"
        | b"vllm_xargs"
        | b"ec_transfer_params" => !is_set(value),
        b"prompt" => is_one_prompt(value),
        // With escape sequences, a name could be any of the names above.
        _ => !name.contains(&b'\\'),
    }
}

/// Whether the field `prompt` has one prompt: a text or a list of token ids, and not a list of texts or a
/// list of lists.
fn is_one_prompt(value: &[u8]) -> bool {
    let mut is_one = true;
    let _ = visit_elements(value, |element| {
        is_one &= !matches!(value[element.start], b'"' | b'[');
    });
    is_one
}

impl PrefillResponse {
    /// Reads a complete response to a prefill leg. If the response is no JSON object, all values are missing.
    pub(crate) fn read(body: &[u8]) -> Self {
        let mut response = Self::default();
        let read = visit_members(body, |member| {
            let name = &body[member.name];
            let value = &body[member.value];
            if name == PARAMETERS.as_bytes() {
                response.parameters = checked_parameters(value);
            } else if name == b"usage" {
                let Usage { input, cached, .. } = read_usage(value);
                response.usage = Usage {
                    input,
                    cached,
                    ..Usage::default()
                };
            }
        });
        read.map_or_else(Self::default, |()| response)
    }
}

/// The parameters as text. `None`: they name no blocks, or a decode backend could not read a request body
/// that contains them, because they are not JSON, or are too long or too deeply nested.
fn checked_parameters(parameters: &[u8]) -> Option<String> {
    if parameters.len() > MAX_PARAMETERS_BYTES || !names_blocks(parameters) {
        return None;
    }
    // This parser refuses texts that `visit_members` skips unread: control characters, `NaN`, and more than 127
    // levels.
    serde_json::from_slice::<serde_json::Value>(parameters).ok()?;
    std::str::from_utf8(parameters).ok().map(Into::into)
}

/// Whether the parameters name blocks that a decode backend can read.
fn names_blocks(parameters: &[u8]) -> bool {
    let mut is_remote = false;
    let mut has_blocks = false;
    let read = visit_members(parameters, |member| {
        let value = &parameters[member.value];
        match &parameters[member.name] {
            b"do_remote_prefill" => is_remote = value == b"true",
            b"remote_block_ids" => has_blocks = is_set(value),
            _ => {}
        }
    });
    read.is_some() && is_remote && has_blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn prefilled(api: Api, body: &Value) -> Result<Value, PrefillSkip> {
        let edited = prefill_request(Some(api), body.to_string().as_bytes())?;
        Ok(serde_json::from_slice(&edited).unwrap())
    }

    #[test]
    fn the_prefill_leg_asks_for_one_unstreamed_token() {
        let body = json!({
            "model": "m", "messages": [{"role": "user", "content": "max_tokens"}], "stream": true,
            "stream_options": {"include_usage": true}, "max_completion_tokens": 90, "min_tokens": 5,
            "n": 1, "temperature": 0.5, "kv_transfer_params": null,
        });
        let mut expected = body.clone();
        let parameters: Value = serde_json::from_str(PREFILL_PARAMETERS).unwrap();
        for (name, value) in [
            ("stream", json!(false)),
            ("stream_options", Value::Null),
            ("max_completion_tokens", json!(1)),
            ("min_tokens", json!(0)),
            ("kv_transfer_params", parameters.clone()),
        ] {
            expected[name] = value;
        }
        assert_eq!(prefilled(Api::Chat, &body), Ok(expected));
        let expected = json!({"max_tokens": 1, "kv_transfer_params": parameters, "prompt": [1, 2]});
        assert_eq!(
            prefilled(Api::Completions, &json!({"prompt": [1, 2]})),
            Ok(expected)
        );
    }

    #[test]
    fn several_sequences_or_transfer_parameters_prevent_legs() {
        for fields in [
            json!({"n": 2}),
            json!({"best_of": 2}),
            json!({"echo": true}),
            json!({"prompt_logprobs": 1}),
            json!({"prompt": ["a", "b"]}),
            json!({"prompt": [[1], [2]]}),
            json!({"kv_transfer_params": {"do_remote_prefill": true}}),
            json!({"vllm_xargs": {"a": 1}}),
        ] {
            assert_eq!(
                prefilled(Api::Completions, &fields),
                Err(PrefillSkip::Field),
                "{fields}"
            );
        }
        assert_eq!(
            prefill_request(Some(Api::Chat), br#"{"\u006e":2}"#),
            Err(PrefillSkip::Field)
        );
        assert_eq!(prefilled(Api::Responses, &json!({})), Err(PrefillSkip::Api));
    }

    #[test]
    fn the_decode_leg_contains_the_prefill_responses_parameters() {
        let parameters = r#"{"do_remote_prefill": true, "remote_block_ids":[[1,2]], "x":1.50}"#;
        let response = format!(
            r#"{{"id":"c","usage":{{"prompt_tokens":9,"prompt_tokens_details":{{"cached_tokens":4}}}},"kv_transfer_params": {parameters} }}"#
        );
        let read = PrefillResponse::read(response.as_bytes());
        assert_eq!((read.usage.input, read.usage.cached), (Some(9), Some(4)));
        let parameters = read.parameters.unwrap();
        for (body, expected) in [
            (
                r#"{"stream":true}"#,
                format!(r#"{{"kv_transfer_params":{parameters},"stream":true}}"#),
            ),
            (
                r#"{"kv_transfer_params":null}"#,
                format!(r#"{{"kv_transfer_params":{parameters}}}"#),
            ),
        ] {
            let decode = decode_request(body.as_bytes(), &parameters).unwrap();
            assert_eq!(decode, expected);
        }
    }

    #[test]
    fn without_kv_blocks_there_are_no_parameters() {
        for parameters in [
            "null",
            "{}",
            r#"{"do_remote_prefill":false,"remote_block_ids":[[1]]}"#,
            r#"{"do_remote_prefill":true,"remote_block_ids":[]}"#,
            r#"{"do_remote_prefill":true,"remote_block_ids":[[1]]"#,
            // The second value counts, as in the readers of engines.
            r#"{"do_remote_prefill":true,"remote_block_ids":[[1]]},"kv_transfer_params":{}"#,
        ] {
            let response = format!(r#"{{"kv_transfer_params":{parameters}}}"#);
            assert_eq!(
                PrefillResponse::read(response.as_bytes()).parameters,
                None,
                "{response}"
            );
        }
        assert_eq!(
            PrefillResponse::read(b"no object"),
            PrefillResponse::default()
        );
    }

    #[test]
    fn parameters_that_spoil_the_body_are_dropped() {
        let read = |value: &[u8]| {
            let parameters = br#"{"kv_transfer_params":{"do_remote_prefill":true,"#;
            let blocks = br#""remote_block_ids":[[1]],"x":"#;
            PrefillResponse::read(&[parameters, &blocks[..], value, b"}}"].concat()).parameters
        };
        let nested = |levels: usize| ["[".repeat(levels), "]".repeat(levels)].concat();
        let long = |length: usize| format!("\"{}\"", "y".repeat(length));
        for valid in ["\"a\\n\"", "1.5e3", "\n{}\t", &nested(100), &long(500_000)] {
            assert!(read(valid.as_bytes()).is_some(), "{valid:.20}");
        }
        for invalid in [
            "\"a\nb\"",
            "\"\u{0}\"",
            "\"\\x\"",
            "\"\\ud800\"",
            "NaN",
            "01",
            "tru",
            "{a:1}",
            "[1,]",
            "[1}",
            &nested(100_000),
            &long(MAX_PARAMETERS_BYTES),
        ] {
            assert_eq!(read(invalid.as_bytes()), None, "{invalid:.20}");
        }
        assert_eq!(read(b"\"\xff\xfe\""), None);
    }
}
