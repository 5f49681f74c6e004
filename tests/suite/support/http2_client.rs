//! An HTTP/2 client for tests, over any stream.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) type Sender = SendRequest<Full<Bytes>>;

/// Makes an HTTP/2 handshake with a window of 16 KiB for each stream.
pub(crate) async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Sender {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(16 << 10)
        .initial_connection_window_size(1 << 20);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Posts JSON. Returns the response as soon as its headers have arrived.
pub(crate) async fn post(sender: &mut Sender, path: &str, body: &str) -> Response<Incoming> {
    let request = Request::post(format!("http://gateway{path}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .unwrap();
    sender.ready().await.unwrap();
    sender.send_request(request).await.unwrap()
}

/// Reads the whole response. Returns the status and the body.
pub(crate) async fn whole(response: Response<Incoming>) -> (u16, Vec<u8>) {
    let status = response.status().as_u16();
    (
        status,
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .to_vec(),
    )
}
