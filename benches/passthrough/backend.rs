//! The backends. They run on the thread of the clients and send scripted responses. The prompt selects the
//! script, because some routers remove unknown fields of a request: `chunks 9 every_us 5` selects a stream of
//! 9 chunks, and a prompt without a script a short complete response. With a number after `mark`, each chunk
//! has this number and its own number. The backends also accept spans, as an OpenTelemetry Collector does.

use super::clients::{EPOCH, words};
use super::engine::{self, framed};
use super::request_reader::read_request;
use super::scripts;
use bytes::BytesMut;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use std::{fs, io};
use tokenweir_protocol::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

/// How the backend responds to a request, as the prompt of the request states it.
struct Script {
    chunks: usize,
    every: Duration,
    /// The additional pause after the first chunk.
    silent: Duration,
    /// The backend gathers chunks until they have this number of bytes, and then writes them at once.
    ahead: usize,
    /// The number of the stream, which each of its chunks has. 0: the chunks have no number.
    mark: usize,
}

/// Only this many bytes at the beginning of a request body are searched for a script.
const SCRIPT: usize = 256;

/// Streams with at least this many chunks are for slow readers, and get a small socket buffer at the backend.
/// The memory of this buffer is not measured. But the kernel limits the memory of all sockets together, so a
/// large buffer would take memory from the measured process.
const FLOOD: usize = 1_000_000;
const FLOOD_BUFFER: usize = 64 << 10;

/// A metrics page of vLLM that was recorded, with which every backend answers.
static METRICS: LazyLock<String> = LazyLock::new(|| {
    let file = "tests/wire/metrics/python-metrics-after.http";
    let answer = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
});

/// Starts this many backends and returns their addresses.
pub(crate) async fn start(count: usize) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for _ in 0..count {
        addresses.push(engine::start(converse).await);
    }
    addresses
}

async fn converse(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(1 << 12);
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await {
        let body = String::from_utf8_lossy(&body[..body.len().min(SCRIPT)]);
        let path = head.split(' ').nth(1).unwrap_or_default();
        if let Some(page) = engine::page(path, "tiny", &METRICS) {
            stream.write_all(page.as_bytes()).await?;
        } else if body.contains(scripts::SCRIPT) {
            scripts::play(&mut stream, number(&body, scripts::SCRIPT)).await?;
        } else if body.contains("\"stream\":true") {
            play(&mut stream, &Script::of(&body)).await?;
        } else {
            let answer = if path == "/v1/traces" {
                ""
            } else {
                engine::CHAT
            };
            stream.write_all(engine::whole(answer).as_bytes()).await?;
        }
    }
    Ok(())
}

async fn play(stream: &mut TcpStream, script: &Script) -> io::Result<()> {
    if script.chunks >= FLOOD {
        socket2::SockRef::from(&*stream).set_send_buffer_size(FLOOD_BUFFER)?;
    }
    stream.write_all(engine::STREAM_HEAD.as_bytes()).await?;
    let begin = Instant::from_std(clock::now());
    let mut ready = String::new();
    for number in 0..script.chunks {
        if !script.every.is_zero() {
            sleep_until(begin + script.every * number as u32).await;
        }
        let at = clock::now().duration_since(*EPOCH).as_nanos();
        let word = match script.mark {
            0 => Cow::Borrowed("word"),
            mark => Cow::Owned(format!("{mark}-{number}")),
        };
        ready.push_str(&framed(&words(at, &word)));
        if ready.len() >= script.ahead || number + 1 == script.chunks {
            stream.write_all(ready.as_bytes()).await?;
            ready.clear();
        }
        if number == 0 && !script.silent.is_zero() {
            rest(stream, script.silent).await?;
        }
    }
    let last = r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let end = format!(
        "{}{}0\r\n\r\n",
        framed(&format!("{last}\n\n")),
        framed("data: [DONE]\n\n")
    );
    stream.write_all(end.as_bytes()).await
}

/// Pauses for `time`. Returns an error if the client disconnects meanwhile.
async fn rest(stream: &mut TcpStream, time: Duration) -> io::Result<()> {
    match timeout(time, stream.read_u8()).await {
        Ok(_) => Err(io::ErrorKind::ConnectionAborted.into()),
        Err(_) => Ok(()),
    }
}

/// The number after the first occurrence of `word` in `text`. 0 if there is none.
fn number(text: &str, word: &str) -> usize {
    let rest = text.split_once(word).map_or("", |(_, rest)| rest);
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().unwrap_or(0)
}

impl Script {
    fn of(body: &str) -> Self {
        let micros = |word| Duration::from_micros(number(body, word) as u64);
        Self {
            chunks: number(body, "chunks "),
            every: micros("every_us "),
            silent: micros("silent_us "),
            ahead: number(body, "ahead "),
            mark: number(body, "mark "),
        }
    }
}
