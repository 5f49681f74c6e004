//! The other APIs: typed streams, transcriptions, and responses without streaming, as vLLM, OpenAI,
//! Anthropic and Cohere write them.

use crate::support::record_facts::{facts, record_of_response};
use crate::support::test_gateway::{body, gateway_answering};
use serde_json::{Value, json};
use tokenweir_request::record::RequestRecord;

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const SPEECH: &str = "/v1/audio/transcriptions";

/// Typed events with the type in the `event` field and in the data.
fn typed(events: &[(&str, &str)]) -> String {
    let event = |(name, data): &(&str, &str)| format!("event: {name}\ndata: {data}\n\n");
    events.iter().map(event).collect()
}

async fn streamed(path: &str, sent: &str) -> RequestRecord {
    record_of_response(path, "text/event-stream", sent).await
}

async fn facts_of_response(path: &str, sent: &Value) -> Value {
    facts(&record_of_response(path, "application/json", &sent.to_string()).await)
}

// === Anthropic messages ===

const MESSAGE_START: (&str, &str) = (
    "message_start",
    r#"{"type":"message_start","message":{"id":"chatcmpl-a","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":78,"output_tokens":0}}}"#,
);
const BLOCK_START: (&str, &str) = (
    "content_block_start",
    r#"{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}"#,
);
const TEXT_DELTA: (&str, &str) = (
    "content_block_delta",
    r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"},"index":0}"#,
);

/// vLLM: `message_delta` counts only the input tokens that are not from the cache.
#[tokio::test]
async fn a_message_stream_counts_cached_input_and_every_kind_of_delta() {
    let sent = typed(&[
        MESSAGE_START,
        ("ping", r#"{"type": "ping"}"#),
        BLOCK_START,
        (
            "content_block_delta",
            r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"Hm"},"index":0}"#,
        ),
        (
            "content_block_delta",
            r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"EqQB"},"index":0}"#,
        ),
        TEXT_DELTA,
        (
            "content_block_delta",
            r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"a\""},"index":1}"#,
        ),
        ("content_block_stop", r#"{"type":"content_block_stop","index":0}"#),
        (
            "message_delta",
            r#"{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":5,"input_tokens":14,"cache_read_input_tokens":60,"cache_creation_input_tokens":4}}"#,
        ),
        ("message_stop", r#"{"type":"message_stop"}"#),
    ]);
    let expected = json!({
        "outcome": "ok", "outputs": 4, "finish": ["tool_calls"], "tokens": [78, 5, 60, null],
        "source": "exact",
    });
    let record = streamed(MESSAGES, &sent).await;
    assert_eq!(facts(&record), expected);
    assert_eq!(record.observed.usage.cache_created, Some(4));
}

#[tokio::test]
async fn a_failed_message_stream_ends_with_its_error_event() {
    let error =
        ("error", r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#);
    let record = streamed(MESSAGES, &typed(&[MESSAGE_START, BLOCK_START, TEXT_DELTA, error])).await;
    let expected = json!({
        "outcome": "stream_error", "outputs": 1, "finish": [null],
        "tokens": [78, null, null, null], "source": "estimated",
    });
    assert_eq!(facts(&record), expected);
    let error = record.observed.error.unwrap();
    assert_eq!((error.kind.as_deref(), error.code), (Some("overloaded_error"), None));
}

// === Responses ===

fn response(kind: &str, status: &str, more: &str) -> String {
    format!(
        "event: {kind}\ndata: {{\"response\":{{\"id\":\"resp_1\",\"object\":\"response\",\
         \"model\":\"m\",\"status\":\"{status}\",\"output\":[],\"tools\":[{{\"type\":\"function\",\
         \"name\":\"f\"}}]{more}}},\"sequence_number\":0,\"type\":\"{kind}\"}}\n\n"
    )
}

const RESPONSE_USAGE: &str = r#","usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8,"cache_write_tokens":0},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":1,"tool_output_tokens":0},"total_tokens":13}"#;

/// vLLM: the first events are written before the engine runs, so only a delta is output.
#[tokio::test]
async fn a_responses_stream_counts_every_kind_of_delta() {
    let deltas = typed(&[
        (
            "response.output_item.added",
            r#"{"item":{"type":"function_call","id":"fc_1","name":"f","arguments":""},"output_index":0,"sequence_number":2,"type":"response.output_item.added"}"#,
        ),
        (
            "response.reasoning_text.delta",
            r#"{"content_index":0,"delta":"Hm","item_id":"rs_1","output_index":0,"sequence_number":3,"type":"response.reasoning_text.delta"}"#,
        ),
        (
            "response.output_text.delta",
            r#"{"content_index":0,"delta":"Hi","item_id":"msg_1","logprobs":[],"output_index":1,"sequence_number":4,"type":"response.output_text.delta"}"#,
        ),
        (
            "response.function_call_arguments.delta",
            r#"{"delta":"{\"a\":1}","item_id":"fc_1","output_index":2,"sequence_number":5,"type":"response.function_call_arguments.delta"}"#,
        ),
        (
            "response.function_call_arguments.done",
            r#"{"arguments":"{\"a\":1}","item_id":"fc_1","output_index":2,"sequence_number":6,"type":"response.function_call_arguments.done"}"#,
        ),
    ]);
    let sent = [
        response("response.created", "in_progress", ",\"usage\":null"),
        response("response.in_progress", "in_progress", ",\"usage\":null"),
        deltas,
        response("response.completed", "completed", RESPONSE_USAGE),
    ]
    .concat();
    let expected = json!({
        "outcome": "ok", "outputs": 3, "finish": ["stop"], "tokens": [9, 4, 8, 1],
        "source": "exact",
    });
    assert_eq!(facts(&streamed(RESPONSES, &sent).await), expected);
}

/// OpenAI's names for the final events. vLLM names the event of an incomplete response
/// `response.completed`, too.
#[tokio::test]
async fn the_finish_reason_of_a_response_is_its_status_and_not_the_name_of_its_event() {
    let begun = response("response.created", "in_progress", "");
    let delta = typed(&[(
        "response.output_text.delta",
        r#"{"delta":"Hi","type":"response.output_text.delta"}"#,
    )]);
    let limit =
        format!(r#","incomplete_details":{{"reason":"max_output_tokens"}}{RESPONSE_USAGE}"#);
    let failure = r#","error":{"code":"server_error","message":"The model failed"},"usage":null"#;
    let thrown = typed(&[(
        "error",
        r#"{"type":"error","code":"rate_limit_exceeded","message":"slow down","param":null,"sequence_number":3}"#,
    )]);
    let cases = [
        (response("response.incomplete", "incomplete", &limit), "ok", json!(["length"])),
        (response("response.completed", "incomplete", &limit), "ok", json!(["length"])),
        (response("response.failed", "failed", failure), "stream_error", json!([null])),
        (thrown, "stream_error", json!([null])),
        (String::new(), "truncated", json!([null])),
    ];
    for (end, outcome, finish) in cases {
        let record = streamed(RESPONSES, &format!("{begun}{delta}{end}")).await;
        let facts = facts(&record);
        assert_eq!((&facts["outcome"], &facts["finish"]), (&json!(outcome), &finish), "{end}");
        assert_eq!(facts["outputs"], 1);
    }
    let failed = format!("{begun}{}", response("response.failed", "failed", failure));
    let error = streamed(RESPONSES, &failed).await.observed.error.unwrap();
    assert_eq!(error.code.as_deref(), Some("server_error"));
}

// === transcriptions ===

/// vLLM splits long recordings into segments, and each segment has a finish reason.
#[tokio::test]
async fn a_transcription_of_several_segments_has_several_finish_reasons() {
    let chunk = |choices: &str, more: &str| {
        format!(
            "data: {{\"id\":\"trsc-1\",\"object\":\"transcription.chunk\",\"created\":1,\
             \"model\":\"m\",\"choices\":[{choices}]{more}}}\n\n"
        )
    };
    let part = |text: &str, finish: &str| {
        let choice = format!(
            r#"{{"delta":{{"content":"{text}"}},"finish_reason":{finish},"stop_reason":null}}"#
        );
        chunk(&choice, "")
    };
    let sent = [
        part(" One", "null"),
        part(" two", "\"stop\""),
        part(" three", "null"),
        part(" four", "\"stop\""),
        chunk("", r#","usage":{"prompt_tokens":12,"total_tokens":18,"completion_tokens":6}"#),
        "data: [DONE]\n\n".into(),
    ]
    .concat();
    let expected = json!({
        "outcome": "ok", "outputs": 4, "finish": ["stop"], "tokens": [12, 6, null, null],
        "source": "exact",
    });
    assert_eq!(facts(&streamed(SPEECH, &sent).await), expected);
}

/// OpenAI: typed data without an `event` field, and the whole text again at the end.
#[tokio::test]
async fn the_last_event_of_a_transcription_repeats_the_text_and_is_no_output() {
    let sent = concat!(
        r#"data: {"type":"transcript.text.delta","delta":"One","logprobs":[{"token":"One","logprob":-0.1,"bytes":[79]}]}"#,
        "\n\n",
        r#"data: {"type":"transcript.text.delta","delta":" two"}"#,
        "\n\n",
        r#"data: {"type":"transcript.text.done","text":"One two","usage":{"type":"tokens","input_tokens":14,"input_token_details":{"text_tokens":0,"audio_tokens":14},"output_tokens":3,"total_tokens":17}}"#,
        "\n\n",
    );
    let record = streamed(SPEECH, sent).await;
    let expected = json!({
        "outcome": "ok", "outputs": 2, "finish": [], "tokens": [14, 3, null, null],
        "source": "exact",
    });
    assert_eq!(facts(&record), expected);
}

#[tokio::test]
async fn a_plain_transcription_reports_seconds_or_tokens() {
    let seconds = json!({"text": "One two", "usage": {"type": "duration", "seconds": 3}});
    let tokens = json!({"text": "One", "usage": {"type": "tokens", "input_tokens": 14,
        "input_token_details": {"text_tokens": 0, "audio_tokens": 14}, "output_tokens": 3,
        "total_tokens": 17}});
    let counts = |facts: Value| (facts["outcome"].clone(), facts["tokens"].clone());
    let none = json!([null, null, null, null]);
    assert_eq!(counts(facts_of_response(SPEECH, &seconds).await), (json!("ok"), none));
    let some = json!([14, 3, null, null]);
    assert_eq!(counts(facts_of_response(SPEECH, &tokens).await), (json!("ok"), some));
}

// === responses without generation ===

/// Pooling responses of vLLM and of Cohere.
#[tokio::test]
async fn embeddings_ranks_and_scores_have_input_counts() {
    let usage = json!({"prompt_tokens": 7, "total_tokens": 7, "completion_tokens": 0,
        "prompt_tokens_details": null});
    let cases = [
        (
            "/v1/embeddings",
            json!({"id": "embd-1", "object": "list", "created": 1, "model": "m",
                "data": [{"index": 0, "object": "embedding", "embedding": [0.1, -2.5e-3]}],
                "usage": usage}),
        ),
        (
            "/v1/embeddings",
            json!({"object": "list", "model": "m",
                "data": [{"object": "embedding", "index": 0, "embedding": "AAAAPwAAgL8="}],
                "usage": {"prompt_tokens": 7, "total_tokens": 7}}),
        ),
        (
            "/pooling",
            json!({"id": "pool-1", "object": "list", "created": 1, "model": "m",
                "data": [{"index": 0, "object": "pooling", "data": [[0.1], [0.2]]}],
                "usage": usage}),
        ),
        (
            "/v1/score",
            json!({"id": "score-1", "object": "list", "created": 1, "model": "m",
                "data": [{"index": 0, "object": "score", "score": 0.5}], "usage": usage}),
        ),
        (
            "/v1/rerank",
            json!({"id": "rerank-1", "model": "m", "usage": {"total_tokens": 7},
                "results": [{"index": 0, "document": {"text": "a"}, "relevance_score": 0.9}]}),
        ),
        (
            "/v2/embed",
            json!({"id": "e-1", "embeddings": {"float": [[0.1]]}, "texts": ["a"],
                "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 7}}}),
        ),
    ];
    for (path, answer) in cases {
        let facts = facts_of_response(path, &answer).await;
        assert_eq!((&facts["outcome"], &facts["tokens"][0]), (&json!("ok"), &json!(7)), "{path}");
        assert_eq!((&facts["source"], &facts["outputs"]), (&json!("exact"), &json!(0)), "{path}");
    }
}

/// vLLM's `encoding_format: bytes`: usage is in a header, which can be long.
#[tokio::test]
async fn binary_embeddings_pass_unchanged_and_their_metadata_header_has_the_usage() {
    let metadata = format!(r#"{{"data":[{}],"usage":{{"prompt_tokens":7}}}}"#, "0,".repeat(50_000));
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 8\r\n\
         metadata: {metadata}\r\n\r\n"
    );
    let bytes = [0, 0, 0, 0x3f, 0, 0, 0x80, 0xbf];
    let (_fake, gateway) = gateway_answering([head.as_bytes(), &bytes].concat()).await;
    let answer = gateway.post("/v1/embeddings", r#"{"model":"tiny"}"#).await;
    assert_eq!(body(&answer), (bytes.to_vec(), true));
    assert!(String::from_utf8_lossy(&answer).contains(&metadata));
    let expected = json!({
        "outcome": "ok", "outputs": 0, "finish": [], "tokens": [7, null, null, null],
        "source": "exact",
    });
    assert_eq!(facts(&gateway.record().await), expected);
}
