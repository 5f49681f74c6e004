//! HTTP/1.1 and HTTP/2 clients that can disconnect at any time.

use crate::access::KEY;
use crate::support::raw_http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, Http2, RST_STREAM, encode_headers, frame,
};
use crate::support::test_gateway::CHAT;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How a client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The client closes its connection.
    Fin,
    Reset,
    /// The client closes the sending half of its connection and keeps the other half open.
    HalfClose,
    /// The client sends a blank line after the request, as some clients do, then closes its connection.
    FinBehindLine,
    /// The client sends another request after this one, then closes its connection.
    FinBehindRequest,
    /// The client sends more bytes after this request than the gateway keeps, then closes its connection.
    FinBehindMuch,
    /// The client resets its HTTP/2 stream and keeps the connection open.
    Http2Stream,
    Http2Connection,
}

pub(super) const WAYS: [Way; 8] = [
    Way::Fin,
    Way::Reset,
    Way::HalfClose,
    Way::FinBehindLine,
    Way::FinBehindRequest,
    Way::FinBehindMuch,
    Way::Http2Stream,
    Way::Http2Connection,
];

pub(super) enum Client {
    Http1(TcpStream),
    Http2(Http2),
}

/// A request that follows another one on a connection.
const NEXT_REQUEST: &str = "GET /health HTTP/1.1\r\nhost: g\r\n\r\n";
/// The bytes of the HTTP/2 error code CANCEL.
const CANCEL_CODE: [u8; 4] = [0, 0, 0, 8];

impl Client {
    /// Connects with the protocol that `way` needs, and sends a request with the first `length` bytes of its
    /// body.
    pub(super) async fn ask(to: SocketAddr, way: Way, body: &str, length: usize) -> Self {
        let is_whole = length == body.len();
        let sent = &body[..length];
        if matches!(way, Way::Http2Stream | Way::Http2Connection) {
            let mut client = Http2::connect(to, &[]).await;
            let pairs = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", CHAT),
                (":authority", "g"),
                ("x-api-key", KEY),
            ];
            let head = frame(HEADERS, END_HEADERS, 1, &encode_headers(&pairs));
            let flags = if is_whole { END_STREAM } else { 0 };
            client
                .send(&[head, frame(DATA, flags, 1, sent.as_bytes())].concat())
                .await;
            return Self::Http2(client);
        }
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let more = match way {
            Way::FinBehindLine if is_whole => "\r\n".to_owned(),
            Way::FinBehindRequest if is_whole => NEXT_REQUEST.to_owned(),
            Way::FinBehindMuch if is_whole => NEXT_REQUEST.repeat(4_000),
            _ => String::new(),
        };
        let length = body.len();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: g\r\nx-api-key: {KEY}\r\ncontent-length: {length}\r\n\r\n"
        );
        stream
            .write_all(format!("{head}{sent}{more}").as_bytes())
            .await
            .unwrap();
        Self::Http1(stream)
    }

    /// Reads the response until it contains the text `wanted` `times` times.
    pub(super) async fn read_until(&mut self, wanted: &str, times: usize) {
        let mut all = Vec::new();
        while String::from_utf8_lossy(&all).matches(wanted).count() < times {
            match self {
                Self::Http1(stream) => assert_ne!(stream.read_buf(&mut all).await.unwrap(), 0),
                Self::Http2(client) => {
                    let frame = client.reader.next().await.expect("a frame");
                    if frame.kind == DATA {
                        all.extend(frame.payload);
                    }
                }
            }
        }
    }

    /// Disconnects in the way of this client. Returns the client if its connection must stay open.
    pub(super) async fn leave(self, way: Way) -> Option<Self> {
        match (self, way) {
            (Self::Http1(stream), Way::Reset) => stream.set_zero_linger().unwrap(),
            (Self::Http1(mut stream), Way::HalfClose) => {
                stream.shutdown().await.unwrap();
                return Some(Self::Http1(stream));
            }
            (Self::Http2(mut client), Way::Http2Stream) => {
                client.send(&frame(RST_STREAM, 0, 1, &CANCEL_CODE)).await;
                return Some(Self::Http2(client));
            }
            _ => {}
        }
        None
    }
}
