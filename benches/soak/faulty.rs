//! A backend that fails as a request selects with `"fault":"…"` in its body. Its model is named `faulty`.

use super::engine::{self, STREAM_HEAD, framed};
use super::request_reader::read_request;
use bytes::BytesMut;
use std::net::SocketAddr;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// The names of the faults that a request can select.
pub(crate) const FAULTS: [&str; 7] = [
    "close",
    "reset",
    "garbage",
    "status",
    "cut",
    "error_event",
    "odd_chunks",
];

const METRICS: &str = "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n\
                       vllm:kv_cache_usage_perc 0.0\n";
const WORD: &str =
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\n";
const ERROR: &str = "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n";

pub(crate) async fn start() -> SocketAddr {
    engine::start(converse).await
}

async fn converse(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = BytesMut::with_capacity(4 << 10);
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let Some(page) = engine::page(path, "faulty", METRICS) else {
            return fail(stream, &String::from_utf8_lossy(&body)).await;
        };
        stream.write_all(page.as_bytes()).await?;
    }
    Ok(())
}

/// Does what the fault in the request states, and closes the connection.
async fn fail(mut stream: TcpStream, body: &str) -> std::io::Result<()> {
    let fault = body
        .split("\"fault\":\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let answer = match fault {
        Some("reset") => return stream.set_zero_linger(),
        Some("garbage") => "220 ready\r\n\r\n".to_owned(),
        Some("status") => engine::whole("{\"error\":{\"message\":\"no\"}}")
            .replace("200 OK", "500 Internal Server Error"),
        Some("cut") => format!("{STREAM_HEAD}{}", framed(WORD)),
        Some("error_event") => format!("{STREAM_HEAD}{}{}0\r\n\r\n", framed(WORD), framed(ERROR)),
        Some("odd_chunks") => format!("{STREAM_HEAD}{}zz\r\n", framed(WORD)),
        _ => return Ok(()),
    };
    stream.write_all(answer.as_bytes()).await
}
