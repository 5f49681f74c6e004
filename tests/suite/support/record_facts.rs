//! Passes a response through a gateway, and returns the record of the request.

use super::scripted_backend::response;
use super::test_gateway::{body, gateway_answering, post};
use serde_json::{Value, json};
use tokenweir_protocol::openai::FinishReason;
use tokenweir_request::record::RequestRecord;

/// Sends a request for `path`, to which the backend responds with the body `sent`. Asserts that the client
/// gets this body unchanged. Returns the record of the request.
pub(crate) async fn record_of_response(path: &str, media_type: &str, sent: &str) -> RequestRecord {
    let answer = response("200 OK", &format!("content-type: {media_type}\r\n"), sent);
    let (_fake, gateway) = gateway_answering(answer).await;
    let answer = gateway.raw(request(path)).await;
    assert!(
        body(&answer) == (sent.as_bytes().to_vec(), true),
        "the body passes unchanged"
    );
    gateway.record().await
}

/// Builds a request for `path`. Audio paths get a form, all other paths get JSON.
pub(crate) fn request(path: &str) -> String {
    if !path.starts_with("/v1/audio/") {
        return post(path, r#"{"model":"tiny","stream":true}"#);
    }
    let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--b--\r\n";
    post(path, form).replace("application/json", "multipart/form-data; boundary=b")
}

/// Returns the fields of a record that tests compare, as JSON. `tokens` lists the numbers of input, output,
/// cached and reasoning tokens.
pub(crate) fn facts(record: &RequestRecord) -> Value {
    let observed = &record.observed;
    let usage = &observed.usage;
    let finish: Vec<_> = observed
        .finish_reasons
        .iter()
        .map(|reason| reason.map(FinishReason::as_str))
        .collect();
    json!({
        "outcome": record.outcome.as_str(),
        "outputs": observed.output_events,
        "finish": finish,
        "tokens": [usage.input, usage.output, usage.cached, usage.reasoning],
        "source": observed.usage_source.as_str(),
    })
}
