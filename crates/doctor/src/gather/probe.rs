//! The probe: a small streaming request. The doctor reads its response with the gateway's observer.

use super::client::ServerClient;
use crate::facts::{GatherError, StreamProbe};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::media_type;
use tokenweir_protocol::openai::Api;
use tokenweir_request::observe::ResponseObserver;
use tokenweir_request::record::Timings;

/// Number of requested output tokens. It suffices to see whether tokens arrive one by one.
const PROBE_MAX_TOKENS: u32 = 16;
const PROBE_PROMPT: &str = "Count from one to twenty.";
/// Maximum number of bytes of the response body that are kept for messages.
const MAX_EXCERPT_BYTES: usize = 300;

/// Maximum number of attempts. A busy machine can delay the reader during one short stream, so bunched tokens
/// are reported only if they occur in each attempt.
const MAX_ATTEMPTS: u32 = 3;

/// Sends the probe. Repeats it while its tokens arrive several at a time.
pub(super) async fn run_probe(
    client: &ServerClient,
    model: Option<&str>,
) -> Result<StreamProbe, GatherError> {
    let mut probe = send_with_fallback(client, model).await?;
    for _ in 1..MAX_ATTEMPTS {
        if probe.bunched_events().is_none() {
            break;
        }
        probe = send_with_fallback(client, model).await?;
    }
    Ok(probe)
}

/// Sends the probe as a chat completion. If the server rejects it with 400 or 404, sends it as a completion,
/// because a model without a chat template serves only completions.
async fn send_with_fallback(
    client: &ServerClient,
    model: Option<&str>,
) -> Result<StreamProbe, GatherError> {
    let probe = send(client, "/v1/chat/completions", Api::Chat, model).await?;
    if !matches!(
        probe.status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND
    ) {
        return Ok(probe);
    }
    send(client, "/v1/completions", Api::Completions, model).await
}

async fn send(
    client: &ServerClient,
    path: &'static str,
    api: Api,
    model: Option<&str>,
) -> Result<StreamProbe, GatherError> {
    let mut timings = Timings::begin(clock::now());
    let body = Bytes::from(request_body(api, model).to_string());
    let response = client.send(Method::POST, path, None, body).await?;
    let (head, mut body) = response.into_parts();
    let mut observer = ResponseObserver::new(api);
    observer.on_head(media_type(&head.headers), false);
    let mut arrivals = Vec::new();
    let mut excerpt = Vec::new();
    // If the stream has not ended by the deadline, the events that have arrived are the result.
    let deadline = clock::now() + client.timeout();
    let mut gave_up_after = None;
    loop {
        let frame = match tokio::time::timeout_at(deadline.into(), body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(_) => break,
            Err(_) => {
                gave_up_after = Some(client.timeout());
                break;
            }
        };
        let Some(data) = frame.data_ref() else {
            continue;
        };
        let now = clock::now();
        let arrival = observer.on_data(data, now, &mut timings);
        arrivals.extend((0..arrival.outputs).map(|_| now));
        let capacity = MAX_EXCERPT_BYTES.saturating_sub(excerpt.len());
        excerpt.extend_from_slice(&data[..data.len().min(capacity)]);
    }
    Ok(StreamProbe {
        path,
        status: head.status,
        headers: head.headers,
        observed: *observer.into_observed(),
        timings,
        arrivals,
        excerpt: String::from_utf8_lossy(&excerpt).into_owned(),
        gave_up_after,
    })
}

fn request_body(api: Api, model: Option<&str>) -> Value {
    let mut body = json!({
        "max_tokens": PROBE_MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    match api {
        Api::Chat => body["messages"] = json!([{ "role": "user", "content": PROBE_PROMPT }]),
        _ => body["prompt"] = PROBE_PROMPT.into(),
    }
    if let Some(model) = model {
        body["model"] = model.into();
    }
    body
}
