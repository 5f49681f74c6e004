//! A client for HTTP/2 that writes raw frames, so that a test can send frames that no library would send.

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The error code `ENHANCE_YOUR_CALM` (RFC 9113 §7).
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

#[derive(Debug)]
pub(crate) struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// An HTTP/2 connection on which the client has already sent the preface and its settings.
pub(crate) struct Http2 {
    pub writer: OwnedWriteHalf,
    pub reader: Reader,
}

/// The reading half of a connection.
pub(crate) struct Reader {
    half: OwnedReadHalf,
    buffer: Vec<u8>,
}

/// How an HTTP/2 stream ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The gateway sent a response with this body.
    Answered(String),
    /// The gateway reset the stream or closed the connection with a GOAWAY, with this error code.
    Refused(u32),
    /// The connection ended without GOAWAY.
    Closed,
}

/// Builds the bytes of an HTTP/2 frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes a header block: literals without indexing and without Huffman coding (RFC 7541 §6.2.2).
pub(crate) fn encode_headers<T: AsRef<[u8]>>(headers: &[(T, T)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name.as_ref(), value.as_ref()] {
            encode_integer(&mut block, text.len());
            block.extend_from_slice(text);
        }
    }
    block
}

/// Appends an integer to a header block, encoded with a prefix of seven bits (RFC 7541 §5.1).
fn encode_integer(block: &mut Vec<u8>, number: usize) {
    if number < 127 {
        return block.push(number as u8);
    }
    block.push(127);
    let mut rest = number - 127;
    while rest >= 128 {
        block.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    block.push(rest as u8);
}

impl Http2 {
    /// Connects, and sends the connection preface and these settings.
    pub(crate) async fn connect(to: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let socket = TcpStream::connect(to).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (half, mut writer) = socket.into_split();
        let each =
            |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
        let settings: Vec<u8> = settings.iter().flat_map(each).collect();
        let begin = [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat();
        writer.write_all(&begin).await.unwrap();
        Self {
            writer,
            reader: Reader {
                half,
                buffer: Vec::new(),
            },
        }
    }

    /// Writes bytes. It is no error if the connection is closed.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.writer.write_all(bytes).await;
    }
}

impl Reader {
    /// Reads the next frame. `None`: the connection has ended.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.take() {
                return Some(frame);
            }
            if !matches!(self.half.read_buf(&mut self.buffer).await, Ok(1..)) {
                return None;
            }
        }
    }

    fn take(&mut self) -> Option<Frame> {
        let head: &[u8; 9] = self.buffer.first_chunk()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5] & 127, head[6], head[7], head[8]]);
        let (kind, flags) = (head[3], head[4]);
        let payload = self.buffer.get(9..9 + length)?.to_vec();
        self.buffer.drain(..9 + length);
        Some(Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// Reads until this stream has ended. Returns how it ended.
    pub(crate) async fn ended(&mut self, stream: u32) -> Ended {
        let mut body = Vec::new();
        while let Some(frame) = self.next().await {
            let reason = |at: usize| {
                let bytes = frame.payload[at..at + 4].try_into().unwrap();
                Ended::Refused(u32::from_be_bytes(bytes))
            };
            match frame.kind {
                GOAWAY => return reason(4),
                RST_STREAM if frame.stream == stream => return reason(0),
                DATA if frame.stream == stream => body.extend_from_slice(&frame.payload),
                _ => {}
            }
            let is_end = matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
            if is_end && frame.stream == stream {
                return Ended::Answered(String::from_utf8_lossy(&body).into_owned());
            }
        }
        Ended::Closed
    }
}
