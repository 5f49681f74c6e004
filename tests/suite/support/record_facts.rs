//! Passes a response through a gateway, and returns the record of the request or the bytes that the client
//! gets.

use super::scripted_backend::{Kind, ScriptedBackend, Step, response};
use super::test_gateway::{Setup, body, body_text, gateway_answering_with, post, start_with};
use serde_json::{Value, json};
use tokenweir_protocol::openai::FinishReason;
use tokenweir_request::record::RequestRecord;

/// The record of a request for `path`, to which the backend responds with the body `sent`. Asserts that the
/// client gets this body unchanged.
pub(crate) async fn record_of_response(path: &str, media_type: &str, sent: &str) -> RequestRecord {
    let answer = response("200 OK", &format!("content-type: {media_type}\r\n"), sent);
    let setup = Setup { max_body: 64 << 20, ..Setup::default() };
    let (_fake, gateway) = gateway_answering_with(setup, answer).await;
    let answer = gateway.raw(request(path)).await;
    assert!(body(&answer) == (sent.as_bytes().to_vec(), true), "the body passes unchanged");
    gateway.record().await
}

/// The body that a client receives if it did not request usage, but the gateway does. `sent` is the stream of
/// the backend.
pub(crate) async fn response_with_injected_usage(kind: Kind, path: &str, sent: &str) -> String {
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{sent}");
    let script = move |_: &_| vec![Step::Send(answer.clone().into_bytes()), Step::Close];
    let fake = ScriptedBackend::start_kind(kind, script).await;
    let setup = Setup { injects_usage: true, ..Setup::default() };
    let gateway = start_with(&[fake.addr], setup).await;
    let answer = gateway.raw(request(path)).await;
    body_text(&answer)
}

/// A request for `path`. Audio paths get a form, all other paths get JSON.
pub(crate) fn request(path: &str) -> String {
    if !path.starts_with("/v1/audio/") {
        return post(path, r#"{"model":"tiny","stream":true}"#);
    }
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--b--\r\n";
    post(path, form).replace("application/json", "multipart/form-data; boundary=b")
}

/// The fields of a record that tests compare, as JSON. `tokens` lists the numbers of input, output, cached
/// and reasoning tokens.
pub(crate) fn facts(record: &RequestRecord) -> Value {
    let observed = &record.observed;
    let usage = &observed.usage;
    let finish: Vec<_> =
        observed.finish_reasons.iter().map(|reason| reason.map(FinishReason::as_str)).collect();
    json!({
        "outcome": record.outcome.as_str(),
        "outputs": observed.output_events,
        "finish": finish,
        "tokens": [usage.input, usage.output, usage.cached, usage.reasoning],
        "source": observed.usage_source.as_str(),
    })
}
