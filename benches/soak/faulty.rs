//! A backend that fails as a request selects with `"fault":"…"` in its body. Its model is named `faulty`.

use super::request_reader::read_request;
use bytes::BytesMut;
use std::net::SocketAddr;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// The names of the faults that a request can select.
pub(crate) const FAULTS: [&str; 7] =
    ["close", "reset", "garbage", "status", "cut", "error_event", "odd_chunks"];

const MODELS: &str = r#"{"data":[{"id":"faulty","owned_by":"vllm"}]}"#;
const METRICS: &str = "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n\
                       vllm:kv_cache_usage_perc 0.0\n";
const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const WORD: &str =
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\n";
const ERROR: &str = "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n";

/// Starts the backend and returns its address.
pub(crate) async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // An error is intended: most faults end the connection in the middle.
            tokio::spawn(async { drop(converse(stream).await) });
        }
    });
    address
}

async fn converse(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(4 << 10);
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await {
        let page = match head.split(' ').nth(1) {
            Some("/v1/models") => MODELS,
            Some("/metrics") => METRICS,
            Some("/version") => r#"{"version":"0.33.0"}"#,
            Some("/health") => "",
            _ => return fail(stream, &String::from_utf8_lossy(&body)).await,
        };
        stream.write_all(whole("200 OK", page).as_bytes()).await?;
    }
    Ok(())
}

fn whole(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Executes the fault of the request and closes the connection.
async fn fail(mut stream: TcpStream, body: &str) -> std::io::Result<()> {
    let fault = body.split("\"fault\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let answer = match fault {
        Some("reset") => return stream.set_zero_linger(),
        Some("garbage") => "220 ready\r\n\r\n".to_owned(),
        Some("status") => whole("500 Internal Server Error", "{\"error\":{\"message\":\"no\"}}"),
        Some("cut") => format!("{STREAM}{}", chunk(WORD)),
        Some("error_event") => format!("{STREAM}{}{}0\r\n\r\n", chunk(WORD), chunk(ERROR)),
        Some("odd_chunks") => format!("{STREAM}{}zz\r\n", chunk(WORD)),
        _ => return Ok(()),
    };
    stream.write_all(answer.as_bytes()).await
}
