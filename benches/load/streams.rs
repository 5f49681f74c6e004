//! Streams that are held at once, each read to its end.

use super::gateway::{Gateway, sum};
use super::{OVER_ONE, resident, since};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tokenweir_core::clock;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// What clients speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A connection for each stream.
    Http1,
    /// A connection for each hundred.
    Http2,
}

/// What was held.
pub(crate) struct Held {
    /// Streams that came whole.
    pub(crate) whole: usize,
    /// What was wrong with the others.
    pub(crate) wrong: Vec<String>,
    /// Most that the gateway had at once.
    pub(crate) open: usize,
    /// Its memory then, in KiB.
    pub(crate) resident: f64,
    /// Milliseconds until the first chunk of each.
    pub(crate) first: Vec<f64>,
}

const PACE_US: usize = 2_000_000;
/// Streams begin so many at a time, this far apart.
const AT_ONCE: usize = 10;
const APART: Duration = Duration::from_millis(7);
/// How often it is looked whether all are open.
const LOOKS: usize = 100;

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Opens all, reads all, and looks at the gateway meanwhile.
pub(crate) async fn hold(gateway: &Gateway, kind: Kind, count: usize, chunks: usize) -> Held {
    let mut reading = JoinSet::new();
    let mut shared = None;
    for index in 0..count {
        let sender = match (kind, &shared) {
            (Kind::Http2, Some(sender)) if !index.is_multiple_of(OVER_ONE) => {
                Sender::Http2(http2::SendRequest::clone(sender))
            }
            _ => connect(gateway, kind).await,
        };
        if let Sender::Http2(sender) = &sender {
            shared = Some(sender.clone());
        }
        reading.spawn(read(sender, index + 1, chunks));
        if index % AT_ONCE == 0 {
            tokio::time::sleep(APART).await;
        }
    }
    // Every stream is open until its last chunk, which is long after the last request was sent.
    let mut open = 0;
    for _ in 0..LOOKS {
        tokio::time::sleep(APART).await;
        open = sum(&gateway.metrics(), "tokenweir_requests_in_flight", "").unwrap() as usize;
        if open == count {
            break;
        }
    }
    let resident = resident(gateway);
    let mut held = Held { whole: 0, wrong: Vec::new(), open, resident, first: Vec::new() };
    while let Some(result) = reading.join_next().await {
        match result.unwrap() {
            Ok(first) => {
                held.whole += 1;
                held.first.push(first);
            }
            Err(wrong) => held.wrong.push(wrong),
        }
    }
    held
}

async fn connect(gateway: &Gateway, kind: Kind) -> Sender {
    let stream = TcpStream::connect(gateway.clients).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let io = TokioIo::new(stream);
    // What ends a connection is seen by the streams on it.
    if kind == Kind::Http1 {
        let (sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(async { drop(connection.await) });
        Sender::Http1(sender)
    } else {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(async { drop(connection.await) });
        Sender::Http2(sender)
    }
}

/// Reads a stream to its end. Milliseconds to its first chunk, or what was wrong with it.
async fn read(sender: Sender, mark: usize, chunks: usize) -> Result<f64, String> {
    let body = format!(
        "{{\"model\":\"tiny\",\"stream\":true,\"chunks\":{chunks},\"every_us\":{PACE_US},\
         \"mark\":{mark},\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}"
    );
    let request = Request::post("http://gateway/v1/chat/completions")
        .header("host", "gateway")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let begun = clock::now();
    let response = match sender {
        Sender::Http1(mut sender) => sender.send_request(request).await,
        Sender::Http2(mut sender) => sender.send_request(request).await,
    };
    let response = response.map_err(|error| format!("stream {mark}: {error}"))?;
    if response.status() != 200 {
        return Err(format!("stream {mark}: status {}", response.status()));
    }
    follow(response.into_body(), mark, chunks, begun).await
}

/// Chunks must come in order, each once, and then the end.
async fn follow(
    mut body: Incoming,
    mark: usize,
    chunks: usize,
    begun: std::time::Instant,
) -> Result<f64, String> {
    let (mut text, mut seen, mut first) = (String::new(), 0, 0.0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("stream {mark}, {seen} chunks: {error}"))?;
        text.push_str(&String::from_utf8_lossy(&frame.into_data().unwrap_or_default()));
        while let Some((event, rest)) = text.split_once("\n\n") {
            if event.contains("\"content\":\" at ") {
                if !event.contains(&format!(" {mark}-{seen}\"")) {
                    return Err(format!("stream {mark} wants chunk {seen}: {event}"));
                }
                if seen == 0 {
                    first = since(begun);
                }
                seen += 1;
            }
            let is_done = event == "data: [DONE]";
            text = rest.to_owned();
            if is_done && seen == chunks {
                return Ok(first);
            }
        }
    }
    Err(format!("stream {mark} ended after {seen} chunks"))
}
