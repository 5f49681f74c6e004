//! Clients with low CPU cost: they write a request and count the response bytes.

use super::engine::post;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Instant;
use tokenweir_protocol::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The moment from which the write times in chunks are counted.
pub(crate) static EPOCH: LazyLock<Instant> = LazyLock::new(clock::now);

/// In a chunk, this text precedes the time at which the backend wrote the chunk.
const STAMP: &[u8] = b"\"content\":\" at ";

/// A chunk of 200 bytes with its write time, `nanos` nanoseconds after [`EPOCH`]. A longer `word` adds a few
/// bytes.
pub(crate) fn words(nanos: u128, word: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-8f2e0c6bd7f94a0e\",\"object\":\"chat.completion.chunk\",\
         \"created\":1763000000,\"model\":\"tiny\",\"choices\":[{{\"index\":0,\"delta\":{{\
         \"content\":\" at {nanos:016} {word}\"}},\"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
    )
}

/// The measurements of one stream at the client.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Number of chunks with text that arrived.
    pub(crate) chunks: usize,
    /// Microseconds from the write of the request to the first chunk.
    pub(crate) ttft: f64,
    /// Microseconds from the write of each chunk to its arrival.
    pub(crate) transit: Vec<f64>,
}

/// A request for a stream of `chunks` chunks, one every `every_us` microseconds. The second chunk follows the
/// first after `silent_us` microseconds.
pub(crate) fn stream(chunks: usize, every_us: usize, silent_us: usize) -> String {
    streamed(
        &format!("chunks {chunks} every_us {every_us} silent_us {silent_us}"),
        0,
    )
}

/// A request for a complete response, not a stream, with a prompt of `prompt` bytes.
pub(crate) fn whole(prompt: usize) -> String {
    post(&format!(
        "{{\"model\":\"tiny\",{}}}",
        messages("Hello", prompt)
    ))
}

/// A request for the stream that the script describes, with a prompt of `prompt` bytes. The backend executes
/// the script.
pub(crate) fn streamed(script: &str, prompt: usize) -> String {
    let messages = messages(script, prompt);
    post(&format!(
        "{{\"model\":\"tiny\",\"stream\":true,{messages}}}"
    ))
}

fn messages(script: &str, prompt: usize) -> String {
    let words = "word ".repeat(prompt / 5);
    format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{script} {words}\"}}]")
}

/// Connects and writes a request.
pub(crate) async fn send(to: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Sends a request for a stream and reads until its first chunk. Returns the open connection.
pub(crate) async fn open(to: SocketAddr, request: &str) -> TcpStream {
    let mut stream = send(to, request).await;
    let mut buffer = Vec::with_capacity(1 << 10);
    while stamp(&buffer).is_none() {
        assert!(
            stream.read_buf(&mut buffer).await.unwrap() > 0,
            "a truncated stream"
        );
    }
    stream
}

/// Sends a request for a stream and reads it to its end.
pub(crate) async fn watch(to: SocketAddr, request: String) -> Seen {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let begun = clock::now();
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut seen, mut buffer) = (Seen::default(), Vec::with_capacity(1 << 16));
    loop {
        assert!(
            stream.read_buf(&mut buffer).await.unwrap() > 0,
            "a truncated stream"
        );
        let now = clock::now();
        let mut read = 0;
        while let Some((at, end)) = stamp(&buffer[read..]) {
            if seen.chunks == 0 {
                seen.ttft = now.duration_since(begun).as_secs_f64() * 1e6;
            }
            seen.chunks += 1;
            let since = now.duration_since(*EPOCH).as_nanos() as f64;
            seen.transit.extend(at.map(|at| (since - at as f64) / 1e3));
            read += end;
        }
        if buffer.ends_with(b"0\r\n\r\n") {
            return seen;
        }
        // A read can end within the time of a chunk, so the last bytes stay in the buffer.
        let keep = buffer.len().saturating_sub(STAMP.len() + 16).max(read);
        buffer.drain(..keep.min(buffer.len()));
    }
}

/// Sends the same request again and again over one connection, until the time `until`. Returns the
/// microseconds from the write of each request to the end of its response.
pub(crate) async fn repeat(to: SocketAddr, request: &str, until: Instant) -> Vec<f64> {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut times, mut buffer) = (Vec::new(), Vec::with_capacity(1 << 12));
    let mut begun = clock::now();
    while begun < until {
        stream.write_all(request.as_bytes()).await.unwrap();
        buffer.clear();
        while !is_whole(&buffer) {
            assert!(
                stream.read_buf(&mut buffer).await.unwrap() > 0,
                "a truncated response"
            );
        }
        let ended = clock::now();
        times.push(ended.duration_since(begun).as_secs_f64() * 1e6);
        begun = ended;
    }
    times
}

/// Whether a response is complete. The scripted response of the backend ends with a text that occurs only
/// there. Some routers write a JSON text of their own, but declare its content length.
fn is_whole(response: &[u8]) -> bool {
    if response.ends_with(b"\"total_tokens\":12}}") {
        return true;
    }
    let Some(end) = memchr::memmem::find(response, b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    length.and_then(|length| length.parse().ok()) == Some(response.len() - end - 4)
}

/// The write time in the next chunk in nanoseconds, and the position after it. `None`: the bytes contain no
/// complete chunk. The inner `None`: chunked framing splits the digits of the time.
fn stamp(bytes: &[u8]) -> Option<(Option<u64>, usize)> {
    let begin = memchr::memmem::find(bytes, STAMP)? + STAMP.len();
    let digits = bytes.get(begin..begin + 16)?;
    let is_whole = digits.iter().all(u8::is_ascii_digit);
    let at = || {
        digits
            .iter()
            .fold(0, |at, digit| at * 10 + u64::from(digit - b'0'))
    };
    Some((is_whole.then(at), begin + 16))
}
