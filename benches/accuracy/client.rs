//! The clients: each sends requests and reads the responses.

use super::generated_streams::exchange_case::Close;
use super::plan::Plan;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Instant;
use tokenweir_protocol::clock;
use tokio::net::TcpStream;

/// The times of one request that the client measured.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) plan: usize,
    /// The time immediately before the client writes the request.
    pub(crate) sent_at: Instant,
    /// The time of the end of the response body, of the end of the connection, or of the client's disconnect.
    pub(crate) ended: Instant,
}

/// Waits as the plan says, sends its request over a new connection, and reads the response or disconnects.
pub(crate) async fn ask(address: SocketAddr, index: usize, plan: &Plan) -> Seen {
    tokio::time::sleep(plan.think).await;
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post(plan.path)
        .header("host", "gateway")
        .header("content-type", "application/json")
        .header("x-request-id", &plan.id)
        .body(Full::new(Bytes::from(plan.request.clone())));
    let sent_at = clock::now();
    let response = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{}", plan.id);
    let (mut body, mut length) = (response.into_body(), 0);
    while let Some(Ok(frame)) = body.frame().await {
        length += frame.data_ref().map_or(0, Bytes::len);
        if plan.case.close == Close::Left && length >= plan.case.arrived {
            break;
        }
    }
    let ended = clock::now();
    connection.abort();
    Seen {
        plan: index,
        sent_at,
        ended,
    }
}
