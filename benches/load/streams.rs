//! Concurrent streams, each read to its end.

use super::gateway::{Gateway, sum};
use super::{STREAMS_PER_HTTP2_CONNECTION, resident, since};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The HTTP version of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// HTTP/1.1, with one connection per stream.
    Http1,
    /// HTTP/2, with one connection per hundred streams.
    Http2,
}

/// The measurements of one call of [`hold`].
pub(crate) struct Held {
    /// Number of streams that arrived completely.
    pub(crate) whole: usize,
    /// The fault of each stream that did not arrive completely.
    pub(crate) wrong: Vec<String>,
    /// The number of streams in flight that the gateway reported when all were open, or at the last check.
    pub(crate) open: usize,
    /// Resident memory of the gateway in KiB at the time of this report.
    pub(crate) resident: f64,
    /// Time to the first chunk of each complete stream in milliseconds.
    pub(crate) first: Vec<f64>,
}

const PACE_US: usize = 2_000_000;
/// Number of streams that start without a pause, and the pause that follows.
const STREAMS_PER_START: usize = 10;
const START_INTERVAL: Duration = Duration::from_millis(7);
/// How often the number of open streams is checked, until all are open.
const CHECKS: usize = 100;

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Opens `count` streams of `chunks` chunks, measures the gateway while all are open, and reads them to their
/// end.
pub(crate) async fn hold(gateway: &Gateway, kind: Kind, count: usize, chunks: usize) -> Held {
    let mut reading = JoinSet::new();
    let mut shared = None;
    for index in 0..count {
        let sender = match (kind, &shared) {
            (Kind::Http2, Some(sender)) if !index.is_multiple_of(STREAMS_PER_HTTP2_CONNECTION) => {
                Sender::Http2(http2::SendRequest::clone(sender))
            }
            _ => connect(gateway, kind).await,
        };
        if let Sender::Http2(sender) = &sender {
            shared = Some(sender.clone());
        }
        reading.spawn(read(sender, index + 1, chunks));
        if index % STREAMS_PER_START == 0 {
            tokio::time::sleep(START_INTERVAL).await;
        }
    }
    // A stream is open until its last chunk. The backend sends that long after the last stream has started.
    let mut open = 0;
    for _ in 0..CHECKS {
        tokio::time::sleep(START_INTERVAL).await;
        open = sum(&gateway.metrics(), "tokenweir_requests_in_flight", "").unwrap() as usize;
        if open == count {
            break;
        }
    }
    let resident = resident(gateway);
    let mut held = Held {
        whole: 0,
        wrong: Vec::new(),
        open,
        resident,
        first: Vec::new(),
    };
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
    // Errors of a connection are ignored here, because the streams of the connection report them.
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

/// Reads the stream with the number `mark` to its end. Returns the milliseconds to its first chunk, or the
/// fault of the stream as text.
async fn read(sender: Sender, mark: usize, chunks: usize) -> Result<f64, String> {
    let body = format!(
        "{{\"model\":\"tiny\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\
         \"content\":\"chunks {chunks} every_us {PACE_US} mark {mark}\"}}]}}"
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

/// Checks that each chunk of the stream has the number `mark`, that the chunks arrive in order and once each,
/// and that the end marker follows.
async fn follow(
    mut body: Incoming,
    mark: usize,
    chunks: usize,
    begun: std::time::Instant,
) -> Result<f64, String> {
    let (mut text, mut chunks_received, mut first) = (String::new(), 0, 0.0);
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| format!("stream {mark}, {chunks_received} chunks: {error}"))?;
        text.push_str(&String::from_utf8_lossy(
            &frame.into_data().unwrap_or_default(),
        ));
        while let Some((event, rest)) = text.split_once("\n\n") {
            if event.contains("\"content\":\" at ") {
                if !event.contains(&format!(" {mark}-{chunks_received}\"")) {
                    return Err(format!(
                        "stream {mark} wants chunk {chunks_received}: {event}"
                    ));
                }
                if chunks_received == 0 {
                    first = since(begun);
                }
                chunks_received += 1;
            }
            let is_done = event == "data: [DONE]";
            text = rest.to_owned();
            if is_done && chunks_received == chunks {
                return Ok(first);
            }
        }
    }
    Err(format!(
        "stream {mark} ended after {chunks_received} chunks"
    ))
}
