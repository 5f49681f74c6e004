//! A small streaming request, observed as the gateway observes all of them.

use super::ask::Asker;
use crate::facts::{Probe, Silence};
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokenweir_core::clock;
use tokenweir_core::headers::media_type;
use tokenweir_core::observe::Observer;
use tokenweir_core::openai::Api;
use tokenweir_core::record::Timings;

/// Tokens that it asks for: enough to see whether they come one by one.
const TOKENS: u32 = 16;
const PROMPT: &str = "Count from one to twenty.";
/// Bytes that are kept of the answer.
const EXCERPT: usize = 300;

/// A model without a chat template has completions only.
const FORMS: [(&str, Api); 2] =
    [("/v1/chat/completions", Api::Chat), ("/v1/completions", Api::Completions)];

/// How often it is sent at most. Tokens that come all at once are collected by somebody each time;
/// that a busy machine looks away for as long as a stream takes is chance.
const TRIES: u32 = 3;

/// Sends it, again if its tokens come all at once.
pub(super) async fn probe(asker: &Asker, model: Option<&str>) -> Result<Probe, Silence> {
    let mut probe = once(asker, model).await?;
    for _ in 1..TRIES {
        if probe.together().is_none() {
            break;
        }
        probe = once(asker, model).await?;
    }
    Ok(probe)
}

/// Sends it, to another path if the first one does not take it.
async fn once(asker: &Asker, model: Option<&str>) -> Result<Probe, Silence> {
    let [first, second] = FORMS;
    let probe = send(asker, first, model).await?;
    let is_wrong = matches!(probe.status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND);
    if is_wrong { send(asker, second, model).await } else { Ok(probe) }
}

async fn send(
    asker: &Asker,
    (path, api): (&'static str, Api),
    model: Option<&str>,
) -> Result<Probe, Silence> {
    let mut timings = Timings::begin(clock::now());
    let body = Bytes::from(document(api, model).to_string());
    let response = asker.send(Method::POST, path, None, body).await?;
    let (head, mut body) = response.into_parts();
    let mut observer = Observer::new(api);
    observer.on_head(media_type(&head.headers), false);
    let mut arrivals = Vec::new();
    let mut beginning = Vec::new();
    // What has come by then is judged all the same.
    let deadline = clock::now() + asker.timeout();
    let mut given_up = None;
    loop {
        let frame = match tokio::time::timeout_at(deadline.into(), body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(_) => break,
            Err(_) => {
                given_up = Some(asker.timeout());
                break;
            }
        };
        let Some(data) = frame.data_ref() else { continue };
        let now = clock::now();
        let arrival = observer.on_data(data, now, &mut timings);
        arrivals.extend((0..arrival.outputs).map(|_| now));
        let room = EXCERPT.saturating_sub(beginning.len());
        beginning.extend_from_slice(&data[..data.len().min(room)]);
    }
    Ok(Probe {
        path,
        status: head.status,
        headers: head.headers,
        observed: observer.into_observed(),
        timings,
        arrivals,
        excerpt: String::from_utf8_lossy(&beginning).into_owned(),
        given_up,
    })
}

fn document(api: Api, model: Option<&str>) -> Value {
    let mut body = json!({
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    match api {
        Api::Chat => body["messages"] = json!([{ "role": "user", "content": PROMPT }]),
        _ => body["prompt"] = PROMPT.into(),
    }
    if let Some(model) = model {
        body["model"] = model.into();
    }
    body
}
