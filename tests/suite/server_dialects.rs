//! Short streams of chat and text completions in the formats of different servers. The formats of vLLM and
//! SGLang come from their sources, those of llama.cpp from its sources and issues, those of OpenAI from its
//! reference.

use crate::support::record_facts::{facts, record_of_response};
use crate::support::scripted_backend::{SGLANG, ScriptedBackend, Step, data};
use crate::support::test_gateway::{ASK_STREAM, CHAT, Setup, body_text, start_with};
use serde_json::json;
use std::time::Duration;
use tokenweir_request::record::{RequestRecord, UninspectedReason};

const COMPLETIONS: &str = "/v1/completions";

async fn streamed(path: &str, sent: &str) -> RequestRecord {
    record_of_response(path, "text/event-stream; charset=utf-8", sent).await
}

/// SGLang 0.5.23, `entrypoints/openai/serving_chat.py`. It writes explicit nulls, a finish chunk of its own,
/// chunks without choices that are not the usage event, and events with names.
fn sglang_chat() -> String {
    let begun = [
        r#"{"id":"a1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}"#,
        r#"{"id":"a1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":"Hm","tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}"#,
        r#"{"id":"a1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":"Hi","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}"#,
        r#"{"id":"a1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":"stop","matched_stop":151645}],"usage":null}"#,
        r#"{"id":"a1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":null,"sglext":{"routed_experts":"AAEC"}}"#,
    ];
    let ended = [
        r#"{"prompt_token_ids":[1,2,3],"output_ids":[[4,5]]}"#,
        r#"{"id":"a1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":9,"total_tokens":13,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8},"reasoning_tokens":2}}"#,
        "[DONE]",
    ];
    [
        begun.map(data).concat(),
        "event: sglext_ids\n".into(),
        ended.map(data).concat(),
    ]
    .concat()
}

#[tokio::test]
async fn sglangs_nulls_and_finish_chunk_are_read() {
    let record = streamed(CHAT, &sglang_chat()).await;
    let expected = json!({
        "outcome": "ok", "outputs": 2, "finish": ["stop"], "tokens": [9, 4, 8, 2],
        "source": "exact",
    });
    assert_eq!(facts(&record), expected);
    assert_eq!(record.observed.events, 8);
    assert_eq!(record.observed.uninspected_reason, None);
    let timings = &record.timings;
    assert!(timings.first_output.is_some() && timings.first_answer >= timings.first_output);
}

#[tokio::test]
async fn only_the_injected_usage_chunk_is_removed() {
    let is_usage = |block: &&str| block.contains("\"usage\":{");
    let sent = sglang_chat();
    let expected: String = sent
        .split_inclusive("\n\n")
        .filter(|block| !is_usage(block))
        .collect();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{sent}");
    let script = move |_: &_| vec![Step::Send(answer.clone().into_bytes()), Step::Close];
    let fake = ScriptedBackend::start_kind(SGLANG, script).await;
    let setup = Setup {
        injects_usage: true,
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    assert_eq!(body_text(&gateway.post(CHAT, ASK_STREAM).await), expected);
}

/// llama.cpp, `tools/server`. The content in its role chunk is null, its last chunk has timings, and its
/// keep-alives are comments.
#[tokio::test]
async fn llama_cpps_timings_and_comments_are_read() {
    let begun = [
        r#"{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,"id":"chatcmpl-l","model":"m","system_fingerprint":"b1-abc","object":"chat.completion.chunk"}"#,
        r#"{"choices":[{"finish_reason":null,"index":0,"delta":{"reasoning_content":"Hm"}}],"created":1,"id":"chatcmpl-l","model":"m","system_fingerprint":"b1-abc","object":"chat.completion.chunk"}"#,
    ];
    let ended = [
        r#"{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Hi"}}],"created":1,"id":"chatcmpl-l","model":"m","system_fingerprint":"b1-abc","object":"chat.completion.chunk"}"#,
        r#"{"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"created":1,"id":"chatcmpl-l","model":"m","system_fingerprint":"b1-abc","object":"chat.completion.chunk","timings":{"cache_n":0,"prompt_n":9,"prompt_ms":31.5,"prompt_per_token_ms":3.5,"prompt_per_second":285.7,"predicted_n":3,"predicted_ms":12.25,"predicted_per_token_ms":4.08,"predicted_per_second":244.9}}"#,
        "[DONE]",
    ];
    let sent = format!(
        ":\n\n{}: ping\n\n{}",
        begun.map(data).concat(),
        ended.map(data).concat()
    );
    let record = streamed(CHAT, &sent).await;
    let expected = json!({
        "outcome": "ok", "outputs": 2, "finish": ["stop"], "tokens": [null, null, null, null],
        "source": "estimated",
    });
    assert_eq!(facts(&record), expected);
    assert_eq!(
        record.output_tokens(),
        Some(3),
        "the stop token has no text"
    );
    assert_eq!((record.observed.comments, record.observed.events), (2, 5));
    let engine = record.observed.engine_times.unwrap();
    assert_eq!(
        (engine.queue, engine.prefill),
        (None, Some(Duration::from_micros(31_500)))
    );
    assert_eq!(engine.decode, Some(Duration::from_micros(12_250)));
}

/// OpenAI writes `usage: null` into every chunk except the last one, and adds padding that hides the lengths
/// of tokens.
#[tokio::test]
async fn openais_null_usage_and_padding_are_read() {
    let sent = [
        r#"{"id":"chatcmpl-o","object":"chat.completion.chunk","created":1,"model":"m","service_tier":"default","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"kD3x"}"#,
        r#"{"id":"chatcmpl-o","object":"chat.completion.chunk","created":1,"model":"m","service_tier":"default","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"a"}"#,
        r#"{"id":"chatcmpl-o","object":"chat.completion.chunk","created":1,"model":"m","service_tier":"default","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null,"obfuscation":"Zz91"}"#,
        r#"{"id":"chatcmpl-o","object":"chat.completion.chunk","created":1,"model":"m","service_tier":"default","system_fingerprint":"fp_1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":10,"total_tokens":19,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":8,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"obfuscation":""}"#,
        "[DONE]",
    ];
    let expected = json!({
        "outcome": "ok", "outputs": 1, "finish": ["stop"], "tokens": [9, 10, 0, 8],
        "source": "exact",
    });
    assert_eq!(
        facts(&streamed(CHAT, &sent.map(data).concat()).await),
        expected
    );
}

/// A line can be this long: `return_token_ids` writes the ids of a whole prompt into one line, and logprobs
/// can add megabytes.
#[tokio::test]
async fn a_stream_line_of_ten_megabytes_is_parsed() {
    let ids = "151643,".repeat(1_500_000);
    let role = format!(
        r#"{{"id":"c","model":"m","choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":null}}],"prompt_token_ids":[{ids}0]}}"#
    );
    let word = format!(
        r#"{{"id":"c","model":"m","choices":[{{"index":0,"delta":{{"content":"Hi"}},"finish_reason":"length","token_ids":[{ids}0]}}]}}"#
    );
    let sent = [&*role, &*word, "[DONE]"].map(data).concat();
    assert!(sent.len() > 20_000_000);
    let record = streamed(CHAT, &sent).await;
    assert_eq!(
        (record.output_tokens(), record.observed.output_events),
        (Some(1_500_001), 1)
    );
    assert_eq!(
        (record.outcome.as_str(), record.observed.uninspected_reason),
        ("ok", None::<UninspectedReason>)
    );
}

/// For several prompts, vLLM sends one choice per prompt, numbered from 0, and interleaves their events.
#[tokio::test]
async fn choices_of_several_prompts_end_separately() {
    let sent = [
        r#"{"id":"cmpl-a","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" Hi","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}"#,
        r#"{"id":"cmpl-a","object":"text_completion","created":1,"model":"m","choices":[{"index":1,"text":" Yo","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}"#,
        r#"{"id":"cmpl-a","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}]}"#,
        r#"{"id":"cmpl-a","object":"text_completion","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":4,"total_tokens":7,"completion_tokens":3}}"#,
        "[DONE]",
    ];
    let record = streamed(COMPLETIONS, &sent.map(data).concat()).await;
    let expected = json!({
        "outcome": "ok", "outputs": 2, "finish": ["stop", "length"],
        "tokens": [4, 3, null, null], "source": "exact",
    });
    assert_eq!(facts(&record), expected);
    assert_eq!(
        record.tpot(),
        None,
        "the token counts are a sum over the choices"
    );
}

/// Two choices of a chat response of vLLM: first a role chunk for each, then the chunks of both in any order.
#[tokio::test]
async fn choices_are_measured_separately() {
    let chunk = |index: u8, delta: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
             \"choices\":[{{\"index\":{index},\"delta\":{delta},\"logprobs\":null,\
             \"finish_reason\":{finish},\"token_ids\":null}}]}}\n\n"
        )
    };
    let role = r#"{"role":"assistant","content":""}"#;
    let call = r#"{"tool_calls":[{"id":"chatcmpl-tool-1","type":"function","index":0,"function":{"name":"f","arguments":""}}]}"#;
    let arguments = r#"{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}"#;
    let sent = [
        chunk(0, role, "null"),
        chunk(1, role, "null"),
        chunk(1, r#"{"content":"Hi"}"#, "null"),
        chunk(0, call, "null"),
        chunk(0, arguments, "null"),
        chunk(1, r#"{"content":"!"}"#, "\"length\""),
        chunk(0, r#"{"content":""}"#, "\"tool_calls\""),
        "data: [DONE]\n\n".into(),
    ]
    .concat();
    let record = streamed(CHAT, &sent).await;
    let expected = json!({
        "outcome": "ok", "outputs": 4, "finish": ["tool_calls", "length"],
        "tokens": [null, null, null, null], "source": "estimated",
    });
    assert_eq!(facts(&record), expected);
    assert_eq!(
        record.observed.inter_chunk_latency.count(),
        2,
        "one per choice"
    );
}
