//! A backend that streams events at a constant rate. The text of each event is its write time in
//! nanoseconds since the process read its clock first.

use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const EVENTS: usize = 20;
const PACE: Duration = Duration::from_millis(50);

static EPOCH: LazyLock<Instant> = LazyLock::new(clock::now);

/// Nanoseconds since [`EPOCH`].
pub(crate) fn nanos() -> u64 {
    clock::now().saturating_duration_since(*EPOCH).as_nanos() as u64
}

/// Serves every connection.
pub(crate) async fn serve(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            stream.set_nodelay(true).unwrap();
            // The gateway can close the connection at any time.
            let _ = connection(stream).await;
        });
    }
}

async fn connection(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = Vec::with_capacity(4 << 10);
    loop {
        request.clear();
        // Small requests arrive in one read: the gateway writes head and body at once.
        while !is_whole(&request) {
            if stream.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        if request.starts_with(b"POST ") {
            answer(&mut stream).await?;
        } else {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
        }
    }
}

/// Whether the head and the whole body have arrived.
fn is_whole(request: &[u8]) -> bool {
    let Some(end) = memchr::memmem::find(request, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    request.len() >= end + 4 + length.map_or(0, |length| length.trim().parse().unwrap())
}

async fn answer(stream: &mut TcpStream) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut next = clock::now();
    for index in 0..EVENTS {
        next += PACE;
        tokio::time::sleep_until(next.into()).await;
        let finish = if index + 1 == EVENTS { "\"stop\"" } else { "null" };
        let event = format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\
             \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"at {} \"}},\
             \"finish_reason\":{finish}}}]}}\n\n",
            nanos()
        );
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
    }
    stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await
}
