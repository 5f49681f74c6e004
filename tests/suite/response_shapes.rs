//! Complete responses of APIs other than chat, as vLLM, OpenAI and Cohere write them. `generated_streams` has
//! the streams of these APIs.

use crate::support::record_facts::{facts, record_of_response};
use crate::support::scripted_backend::response;
use crate::support::test_gateway::{body, gateway_answering};
use serde_json::{Value, json};

const SPEECH: &str = "/v1/audio/transcriptions";

async fn facts_of_response(path: &str, sent: &Value) -> Value {
    facts(&record_of_response(path, "application/json", &sent.to_string()).await)
}

#[tokio::test]
async fn transcription_usage_is_seconds_or_tokens() {
    let seconds = json!({"text": "One two", "usage": {"type": "duration", "seconds": 3}});
    let tokens = json!({"text": "One", "usage": {"type": "tokens", "input_tokens": 14,
        "input_token_details": {"text_tokens": 0, "audio_tokens": 14}, "output_tokens": 3,
        "total_tokens": 17}});
    let counts = |facts: Value| (facts["outcome"].clone(), facts["tokens"].clone());
    let none = json!([null, null, null, null]);
    assert_eq!(
        counts(facts_of_response(SPEECH, &seconds).await),
        (json!("ok"), none)
    );
    let some = json!([14, 3, null, null]);
    assert_eq!(
        counts(facts_of_response(SPEECH, &tokens).await),
        (json!("ok"), some)
    );
}

/// Responses of pooling models in formats that the recordings do not have.
#[tokio::test]
async fn embeddings_ranks_and_scores_count_input_tokens() {
    let cases = [
        (
            "/v1/embeddings",
            json!({"object": "list", "model": "m",
                "data": [{"object": "embedding", "index": 0, "embedding": "AAAAPwAAgL8="}],
                "usage": {"prompt_tokens": 7, "total_tokens": 7}}),
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
        (
            "/v2/rerank",
            json!({"id": "r-1", "results": [{"index": 0, "relevance_score": 0.9}],
                "meta": {"billed_units": null, "tokens": {"input_tokens": 7.0}}}),
        ),
    ];
    for (path, answer) in cases {
        let facts = facts_of_response(path, &answer).await;
        assert_eq!(
            (&facts["outcome"], &facts["tokens"][0]),
            (&json!("ok"), &json!(7)),
            "{path}"
        );
        assert_eq!(
            (&facts["source"], &facts["outputs"]),
            (&json!("exact"), &json!(0)),
            "{path}"
        );
    }
}

/// vLLM's format for `encoding_format: bytes`: a header has the usage, and it can be long.
#[tokio::test]
async fn binary_embeddings_have_usage_in_a_header() {
    let metadata = format!(
        r#"{{"data":[{}0],"usage":{{"prompt_tokens":7}}}}"#,
        "0,".repeat(50_000)
    );
    let headers = format!("content-type: application/octet-stream\r\nmetadata: {metadata}\r\n");
    let bytes = [0, 0, 0, 0x3f, 0, 0, 0x80, 0xbf];
    let (_fake, gateway) = gateway_answering(response("200 OK", &headers, bytes)).await;
    let answer = gateway.post("/v1/embeddings", r#"{"model":"tiny"}"#).await;
    assert_eq!(body(&answer), (bytes.to_vec(), true));
    assert!(String::from_utf8_lossy(&answer).contains(&metadata));
    let expected = json!({
        "outcome": "ok", "outputs": 0, "finish": [], "tokens": [7, null, null, null],
        "source": "exact",
    });
    assert_eq!(facts(&gateway.record().await), expected);
}
