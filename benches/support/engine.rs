//! The parts that the scripted backends of the benches share: their listener, the pages of a vLLM server, the
//! framing of responses, and the chat requests of clients.

use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};

/// A short complete response to a chat request.
pub(crate) const CHAT: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hello there."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}"#;
/// The response head of a chunked event stream.
pub(crate) const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                                      transfer-encoding: chunked\r\n\r\n";

/// Starts a backend and returns its address. `converse` serves one connection, in a task of its own.
pub(crate) async fn start<Serving>(
    converse: impl Fn(TcpStream) -> Serving + Send + 'static,
) -> SocketAddr
where
    Serving: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let serving = converse(stream);
            // An error is ignored: the peer or the script has ended the connection in the middle of a response.
            tokio::spawn(async { drop(serving.await) });
        }
    });
    address
}

/// The response with the page that a vLLM server has at this path. `metrics` is the content of its metrics page.
/// `None`: the gateway fetches no such page.
pub(crate) fn page(path: &str, model: &str, metrics: &str) -> Option<String> {
    Some(match path {
        "/health" => whole(""),
        "/version" => whole(r#"{"version":"0.33.0"}"#),
        "/v1/models" => whole(&format!(
            r#"{{"data":[{{"id":"{model}","owned_by":"vllm"}}]}}"#
        )),
        "/metrics" => whole(metrics),
        _ => return None,
    })
}

/// Builds a complete response with this JSON body.
pub(crate) fn whole(body: &str) -> String {
    let kind = if body.starts_with('{') {
        "application/json"
    } else {
        "text/plain"
    };
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Builds a chat request with this body.
pub(crate) fn post(body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Frames a text as one HTTP chunk.
pub(crate) fn framed(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}
