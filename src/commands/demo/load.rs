//! The load generator of the demo: short and long chats at a constant rate, some of them streamed.
//! Each response is read to its end and counted.

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokenweir_doctor::gather::ServerClient;
use tokenweir_protocol::clock;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Counters of the requests that the demo sends.
#[derive(Debug, Default)]
pub(crate) struct DemoCounters {
    /// Number of requests with a complete, successful response.
    pub(super) served: AtomicU64,
    /// Number of requests without a complete, successful response.
    pub(super) failed: AtomicU64,
}

const TOPICS: [&str; 4] = ["weirs", "rivers", "token streams", "prefix caches"];

/// Maximum wait for the last responses after the demo has stopped sending requests. A backend with the fault
/// `hang` never responds.
const LAST_RESPONSES: Duration = Duration::from_secs(5);

/// Sends `rate` requests per second to the gateway until `stop` receives a message or is closed. Then waits for
/// the last responses. Requests still without a response are not counted.
pub(crate) async fn run(
    client: ServerClient,
    model: String,
    rate: f64,
    counters: Arc<DemoCounters>,
    mut stop: oneshot::Receiver<()>,
) {
    let mut requests = JoinSet::new();
    let mut random = fastrand::Rng::with_seed(7);
    let mut due = clock::now();
    for number in 0_u64.. {
        due += Duration::from_secs_f64(1.0 / rate);
        tokio::select! {
            () = tokio::time::sleep_until(due.into()) => {}
            _ = &mut stop => break,
        }
        while requests.try_join_next().is_some() {}
        let body = build_body(&model, number, &mut random);
        let client = client.clone();
        let counters = counters.clone();
        requests.spawn(async move {
            let is_served = is_completed(&client, body).await;
            let counter = if is_served {
                &counters.served
            } else {
                &counters.failed
            };
            counter.fetch_add(1, Ordering::Relaxed);
        });
    }
    let last = async { while requests.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_RESPONSES, last).await;
}

/// Sends a request. Returns whether the response was successful and complete.
async fn is_completed(client: &ServerClient, body: Bytes) -> bool {
    let path = "/v1/chat/completions";
    let Ok(response) = client.send(Method::POST, path, None, body).await else {
        return false;
    };
    response.status().is_success() && response.into_body().collect().await.is_ok()
}

/// Builds the body of a chat request about one of [`TOPICS`]. All system messages of a topic begin with the same text, so
/// that prefix caches have hits.
fn build_body(model: &str, number: u64, random: &mut fastrand::Rng) -> Bytes {
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
    Bytes::from(body.to_string())
}
