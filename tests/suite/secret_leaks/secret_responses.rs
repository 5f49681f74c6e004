//! The responses of the backend in the tests of secret leaks. Each text field has a secret.

use crate::support::scripted_backend::{Step, begin, json as whole, stream_of};
use serde_json::{Value, json};

/// The beginning of every secret.
pub(super) const SECRET_PREFIX: &str = "canary7f3a-";

pub(super) fn secret(name: &str) -> String {
    format!("{SECRET_PREFIX}{name}-end")
}

/// An API that the test covers.
pub(super) struct Api {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
}

pub(super) const APIS: [Api; 4] = [
    Api {
        name: "chat",
        path: "/v1/chat/completions",
    },
    Api {
        name: "completions",
        path: "/v1/completions",
    },
    Api {
        name: "responses",
        path: "/v1/responses",
    },
    Api {
        name: "messages",
        path: "/v1/messages",
    },
];

/// Builds the events of a stream of this API, with a secret in each text field.
fn events(api: &Api) -> Vec<Value> {
    let (text, thought, call) = (
        secret("answer"),
        secret("reasoning"),
        secret("tool-arguments"),
    );
    match api.name {
        "chat" => {
            let choice = |delta: Value, finish: Value| {
                json!({ "id": "c", "model": "tiny", "system_fingerprint": secret("fingerprint"),
                    "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
            };
            vec![
                choice(json!({ "role": "assistant", "content": "" }), Value::Null),
                choice(json!({ "reasoning_content": thought }), Value::Null),
                choice(json!({ "content": text }), Value::Null),
                choice(
                    json!({ "tool_calls": [{ "index": 0, "function": { "arguments": call } }] }),
                    Value::Null,
                ),
                choice(json!({}), json!("stop")),
            ]
        }
        "completions" => vec![
            json!({ "id": "c", "choices": [{ "index": 0, "text": text, "finish_reason": null,
                "stop_reason": secret("stop-reason") }] }),
            json!({ "id": "c", "choices": [{ "index": 0, "text": "", "finish_reason": "stop" }] }),
        ],
        "responses" => vec![
            json!({ "type": "response.reasoning_text.delta", "delta": thought }),
            json!({ "type": "response.output_text.delta", "delta": text }),
            json!({ "type": "response.function_call_arguments.delta", "delta": call }),
            json!({ "type": "response.completed",
                "response": { "id": "r", "status": "completed", "user": secret("echoed-user") } }),
        ],
        _ => vec![
            json!({ "type": "content_block_delta", "delta": { "thinking": thought } }),
            json!({ "type": "content_block_delta", "delta": { "text": text } }),
            json!({ "type": "content_block_delta", "delta": { "partial_json": call } }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" } }),
            json!({ "type": "message_stop" }),
        ],
    }
}

/// Builds a complete response of this API, not a stream, with a secret in each text field.
fn document(api: &Api) -> Value {
    let (text, thought, call) = (
        secret("whole-answer"),
        secret("whole-reasoning"),
        secret("whole-arguments"),
    );
    match api.name {
        "chat" => json!({ "id": "c", "model": "tiny", "choices": [{ "index": 0, "message": {
            "content": text, "reasoning": thought,
            "tool_calls": [{ "function": { "arguments": call } }] }, "finish_reason": "stop" }] }),
        "completions" => {
            json!({ "id": "c", "choices": [{ "index": 0, "text": text, "finish_reason": "stop" }] })
        }
        "responses" => json!({ "id": "r", "status": "completed", "output": [
            { "type": "reasoning", "content": [{ "type": "reasoning_text", "text": thought }] },
            { "type": "message", "content": [{ "type": "output_text", "text": text }] },
            { "type": "function_call", "arguments": call }] }),
        _ => json!({ "id": "m", "stop_reason": "end_turn", "content": [
            { "type": "thinking", "thinking": thought }, { "type": "text", "text": text },
            { "type": "tool_use", "input": { "a": call } }] }),
    }
}

fn error(code: u16) -> Value {
    json!({ "type": "error", "error": { "message": secret("error-message"), "type": "SomeError",
        "param": secret("error-param"), "code": code } })
}

/// Returns the steps of the backend for the behaviour `play`.
pub(super) fn answer(api: &Api, is_stream: bool, play: &str) -> Vec<Step> {
    let mut events: Vec<String> = events(api).iter().map(Value::to_string).collect();
    match play {
        "error_status" => vec![Step::Send(whole("500 Oh", &error(500).to_string()))],
        "bad_request" => vec![Step::Send(whole("400 No", &error(400).to_string()))],
        "garbage" => vec![
            Step::Send(format!("{}\r\n\r\n", secret("no-http")).into()),
            Step::Close,
        ],
        "cut" if is_stream => vec![begin(&events[..1]), Step::Reset],
        "cut" => {
            let bytes = whole("200 OK", &document(api).to_string());
            vec![Step::Send(bytes[..bytes.len() - 9].to_vec()), Step::Close]
        }
        "hang" => vec![begin(&events[..2]), Step::AwaitClose],
        "error_event" => vec![Step::Send(stream_of(&[
            &events[0],
            &error(500).to_string(),
        ]))],
        _ if is_stream => {
            events.push("[DONE]".to_owned());
            vec![Step::Send(stream_of(&events))]
        }
        _ => vec![Step::Send(whole("200 OK", &document(api).to_string()))],
    }
}
