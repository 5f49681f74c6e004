//! Measures how a subject (a measured proxy) treats streams. It must forward every byte, show a broken stream
//! as broken, forward unknown events without delay, and end the request at the backend when the client
//! disconnects.

use super::clients;
use super::scripts::{BROKEN, LEFT, SCRIPT, STREAMS, UNKNOWN};
use super::subject::Subject;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Maximum time until an event, a response, or the end of a request at the backend.
const PATIENCE: Duration = Duration::from_secs(5);

/// Measures a subject. Returns four values. First the number of streams whose bytes the subject changes, and
/// the number of broken streams that it shows as complete. Then two times in milliseconds: until an event of
/// an unknown channel arrives, and until the backend sees that the client disconnected. `PATIENCE` as a time
/// means never.
pub(crate) async fn of(subject: &Subject) -> [f64; 4] {
    let begun = clock::now();
    let request = clients::streamed(&format!("{SCRIPT}{UNKNOWN}"), 0);
    let mut client = TcpStream::connect(subject.address).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let first = async {
        while !read.windows(11).any(|window| window == b"thoughts_v9") {
            if client.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return std::future::pending().await;
            }
        }
    };
    let first = timeout(PATIENCE, first)
        .await
        .map_or(PATIENCE, |()| clock::now() - begun);
    *LEFT.lock().unwrap() = None;
    let left = clock::now();
    drop(client);
    while LEFT.lock().unwrap().is_none() && clock::now() - left < PATIENCE {
        sleep(Duration::from_millis(1)).await;
    }
    let seen = LEFT
        .lock()
        .unwrap()
        .map_or(PATIENCE, |seen| seen.saturating_duration_since(left));
    let (mut changed, mut hidden) = (0, 0);
    for (number, stream) in STREAMS.iter().enumerate() {
        changed += usize::from(body(subject, number).await.as_deref() != Some(stream.as_bytes()));
    }
    for number in BROKEN {
        hidden += usize::from(body(subject, number).await.is_some());
    }
    [
        changed as f64,
        hidden as f64,
        first.as_secs_f64() * 1e3,
        seen.as_secs_f64() * 1e3,
    ]
}

/// Requests the script with this number. Returns the response body. `None`: the response is broken,
/// incomplete or an error.
async fn body(subject: &Subject, number: usize) -> Option<Bytes> {
    let request = clients::streamed(&format!("{SCRIPT}{number}"), 0);
    let (_, body) = request.split_once("\r\n\r\n")?;
    let body = Bytes::from(body.to_owned());
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = http::Request::post(format!("http://{}/v1/chat/completions", subject.address))
        .header("content-type", "application/json")
        .body(Full::new(body))
        .unwrap();
    let response = timeout(PATIENCE, async {
        let response = client.request(request).await.ok()?;
        let is_success = response.status().is_success();
        response
            .into_body()
            .collect()
            .await
            .ok()
            .filter(|_| is_success)
    });
    Some(response.await.ok()??.to_bytes())
}
