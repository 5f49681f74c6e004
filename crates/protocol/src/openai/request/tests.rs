//! Tests of the fields that are read from request bodies.

use super::prompt::PromptSpans;
use super::request_fields::RequestFields;
use super::{IdentityFields, ModelSpan, Splice};
use memchr::memmem;

#[test]
fn fields_are_found_in_any_order() {
    let body = br#" {"messages":[{"role":"user","content":"{\"model\":\"no\"}","n":7}],
        "stream_options":{"include_usage":true},"n":2,"max_tokens":5,
        "max_completion_tokens":9,"stream":true,"model":"q\u0077en","metadata":{"model":"no"}}"#;
    let start = memmem::find(body, br#""q\u0077en""#).unwrap();
    let included = memmem::find(body, br#"true},"n""#).unwrap() + "true".len();
    let expected = RequestFields {
        model: Some("qwen".into()),
        model_slot: Some(ModelSpan::Json(start..start + r#""q\u0077en""#.len())),
        stream: true,
        continuous_usage_splice: Some(Splice::replace(
            included..included,
            r#","continuous_usage_stats":true"#,
        )),
        max_tokens: Some(9),
        n: Some(2),
        identity: IdentityFields {
            messages: 1,
            ..Default::default()
        },
        ..RequestFields::default()
    };
    let parsed = RequestFields::parse(body).unwrap();
    assert_eq!(
        RequestFields {
            prompt: PromptSpans::default(),
            ..parsed
        },
        expected
    );
}

#[test]
fn null_is_the_same_as_absent() {
    let nulls = br#"{"model":null,"stream":null,"n":null,"max_tokens":null}"#;
    assert_eq!(RequestFields::parse(nulls), Ok(RequestFields::default()));
    assert_eq!(RequestFields::parse(b"{}"), Ok(RequestFields::default()));
}

#[test]
fn stateful_requests_are_recognized() {
    for body in [
        r#"{"store":true}"#,
        r#"{"background":true}"#,
        r#"{"previous_response_id":"resp_1"}"#,
        r#"{"kv_transfer_params":{"do_remote_prefill":true}}"#,
        r#"{"tools":[{"type":"mcp","server_url":"http://a"}]}"#,
    ] {
        let body = body.as_bytes();
        assert!(
            RequestFields::parse(body).unwrap().has_effects(body),
            "{body:?}"
        );
    }
    for body in [
        r#"{"store":false}"#,
        r#"{"background":null,"kv_transfer_params":null}"#,
    ] {
        let body = body.as_bytes();
        assert!(
            !RequestFields::parse(body).unwrap().has_effects(body),
            "{body:?}"
        );
    }
}

#[test]
fn requests_with_listed_tokens_are_recognized() {
    for body in [r#"{"logprobs":true}"#, r#"{"x":{"return_token_ids":true}}"#] {
        assert!(RequestFields::has_counting_field(body.as_bytes()), "{body}");
    }
    assert!(!RequestFields::has_counting_field(
        br#"{"stream_options":{"include_usage":false}}"#
    ));
}

#[test]
fn only_a_literal_true_requests_a_stream() {
    for body in [
        r#"{"stream":"true"}"#,
        r#"{"stream":1}"#,
        r#"{"stream":false}"#,
    ] {
        assert_eq!(
            RequestFields::parse(body.as_bytes()).map(|fields| fields.stream),
            Ok(false),
            "{body}"
        );
    }
}
