//! The light load of the demo: short and long chats at a steady rate, some streamed, each checked
//! to its end.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, header};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_net::client::Client;
use tokenweir_net::idle::Idle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// What came of the load so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Requests answered whole.
    pub(super) served: AtomicU64,
    /// Requests that were not.
    pub(super) failed: AtomicU64,
}

const TOPICS: [&str; 4] = ["weirs", "rivers", "token streams", "prefix caches"];

/// Sends `rate` requests per second to the gateway until `stop`, and waits for the last to end.
pub(crate) async fn run(
    gateway: Address,
    client: Client,
    model: String,
    rate: f64,
    tally: Arc<Tally>,
    mut stop: oneshot::Receiver<()>,
) {
    let (mut requests, idle) = (JoinSet::new(), Idle::default());
    let mut random = fastrand::Rng::with_seed(7);
    let mut due = clock::now();
    for number in 0_u64.. {
        due += Duration::from_secs_f64(1.0 / rate);
        tokio::select! {
            () = tokio::time::sleep_until(due.into()) => {}
            _ = &mut stop => break,
        }
        while requests.try_join_next().is_some() {}
        let request = request(&gateway, &model, number, &mut random);
        let (client, idle, tally) = (client.clone(), idle.clone(), tally.clone());
        requests.spawn(async move {
            let count =
                if is_whole(&client, &idle, request).await { &tally.served } else { &tally.failed };
            count.fetch_add(1, Ordering::Relaxed);
        });
    }
    while requests.join_next().await.is_some() {}
}

async fn is_whole(client: &Client, idle: &Idle, request: Request<Bytes>) -> bool {
    let Ok(response) = client.send(idle, request).await else { return false };
    response.status().is_success() && response.into_body().collect().await.is_ok()
}

/// Conversations of four topics share their first message, so that prefix caches have work.
fn request(
    gateway: &Address,
    model: &str,
    number: u64,
    random: &mut fastrand::Rng,
) -> Request<Bytes> {
    let topic = TOPICS[(number % 4) as usize];
    let system = format!("You know everything about {topic}. ").repeat(random.usize(4..40));
    let is_stream = !number.is_multiple_of(5);
    let mut body = serde_json::json!({
        "model": model,
        "stream": is_stream,
        "max_tokens": random.u32(16..128),
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": format!("Tell me about {topic}, number {number}.")},
        ],
    });
    if is_stream {
        body["stream_options"] = serde_json::json!({ "include_usage": true });
    }
    let mut request = Request::new(Bytes::from(body.to_string()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = gateway.uri(&PathAndQuery::from_static("/v1/chat/completions"));
    let headers = request.headers_mut();
    headers.insert(header::HOST, gateway.host_header().clone());
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    request
}
