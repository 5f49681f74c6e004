//! Requests whose body the gateway forwards without reading it: uploads to a route with a fixed model, and
//! WebSocket connections.

use crate::access::tokens::TenantNames;
use crate::access::{KEY, access, other_tenant, tenant};
use crate::support::http2_client;
use crate::support::test_gateway::{Running, Setup, start_with, status};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::proxy::{ConfiguredRoute, ConfiguredRoutes};
use tokenweir_gateway::server::DrainOutcome;
use tokenweir_protocol::http1::websocket;
use tokenweir_request::access::{KeyFile, TenantEntry};
use tokenweir_request::record::{Outcome, RequestRecord, Termination};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

const UPLOAD: &str = "/upload";
const MODELS: &str =
    r#"{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm"}]}"#;
const MIB: usize = 1 << 20;
/// Maximum time until an event that should happen at once.
const SOON: Duration = Duration::from_secs(20);
/// The headers of a WebSocket handshake (RFC 6455).
const HANDSHAKE: &str = "upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n\
                         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                         sec-websocket-protocol: realtime\r\n";

/// A backend that counts the bytes of uploads and echoes the bytes of WebSocket connections.
struct Backend {
    addr: SocketAddr,
    /// The backend reads one upload for each permit of this semaphore.
    gate: Arc<Semaphore>,
    /// For each ended upload or WebSocket connection, its length in bytes. `Err`: the upload broke off after
    /// this many bytes.
    ended: mpsc::UnboundedReceiver<Result<usize, usize>>,
}

async fn backend() -> Backend {
    let (sender, ended) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let (uploads, upload_gate) = (sender.clone(), gate.clone());
    let upload = move |body: Body| async move {
        upload_gate.acquire().await.unwrap().forget();
        let (mut length, mut parts) = (0, body.into_data_stream());
        while let Some(part) = parts.next().await {
            let Ok(part) = part else {
                uploads.send(Err(length)).unwrap();
                return String::new();
            };
            length += part.len();
        }
        uploads.send(Ok(length)).unwrap();
        length.to_string()
    };
    let realtime = move |request: Request| async move { echo(request, sender) };
    let router = Router::new()
        .route("/health", get(|| async { "" }))
        .route(
            "/metrics",
            get(|| async { "vllm:num_requests_running{engine=\"0\"} 0.0\n" }),
        )
        .route("/version", get(|| async { r#"{"version":"0.32.0"}"# }))
        .route(
            "/v1/models",
            get(|| async { ([("content-type", "application/json")], MODELS) }),
        )
        .route("/v1/realtime", get(realtime))
        .route(
            UPLOAD,
            post(upload).layer(axum::extract::DefaultBodyLimit::disable()),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, router).await });
    Backend { addr, gate, ended }
}

/// Accepts a WebSocket connection and echoes its bytes until the byte `q`. With `refuse` in the query,
/// responds with 403 instead, and with `wrong`, sends a wrong `sec-websocket-accept`.
fn echo(request: Request, ended: mpsc::UnboundedSender<Result<usize, usize>>) -> Response {
    let query = request.uri().query().unwrap_or_default().to_owned();
    if query.contains("refuse") {
        return (StatusCode::FORBIDDEN, "no").into_response();
    }
    let (parts, body) = request.into_parts();
    let accept = websocket::expected_accept(&parts).expect("the handshake of the client");
    let subprotocol = parts.headers["sec-websocket-protocol"].clone();
    let upgrade = hyper::upgrade::on(Request::from_parts(parts, body));
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        let (mut length, mut buffer) = (0, [0; 1_024]);
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            length += count;
            if buffer[..count].contains(&b'q') || stream.write_all(&buffer[..count]).await.is_err()
            {
                break;
            }
        }
        let _ = ended.send(Ok(length));
    });
    let mut headers = HeaderMap::new();
    headers.insert("upgrade", websocket::PROTOCOL);
    headers.insert("connection", "upgrade".parse().unwrap());
    headers.insert("sec-websocket-protocol", subprotocol);
    let wrong = || "AAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse().unwrap();
    let accept = if query.contains("wrong") {
        wrong()
    } else {
        accept
    };
    headers.insert("sec-websocket-accept", accept);
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

impl Backend {
    async fn next_end(&mut self) -> Result<usize, usize> {
        tokio::time::timeout(SOON, self.ended.recv())
            .await
            .expect("an end")
            .unwrap()
    }
}

/// Starts a gateway that forwards uploads without reading them. It has only 64 KiB of memory for request
/// bodies.
async fn gateway(backend: &Backend, setup: Setup) -> Running {
    let route = ConfiguredRoute::new(UPLOAD, vec![Method::POST], None);
    let routes = [route.with_unread_body("tiny", Some(512 * MIB))];
    let setup = Setup {
        routes: ConfiguredRoutes::new(routes.into_iter()),
        body_memory: 64 << 10,
        max_body: 32 << 10,
        ..setup
    };
    start_with(&[backend.addr], setup).await
}

/// Starts a backend, and a gateway in front of it.
async fn start(setup: Setup) -> (Backend, Running) {
    let backend = backend().await;
    let gateway = gateway(&backend, setup).await;
    (backend, gateway)
}

fn upload_head(framing: &str) -> String {
    format!("POST {UPLOAD} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n{framing}\r\n\r\n")
}

async fn record(gateway: &Running) -> RequestRecord {
    tokio::time::timeout(SOON, gateway.record())
        .await
        .expect("a record")
}

async fn read_rest(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // The gateway may reset the connection. The bytes before that count.
    let _ = tokio::time::timeout(SOON, client.read_to_end(&mut answer))
        .await
        .expect("an end");
    String::from_utf8_lossy(&answer).into_owned()
}

// === uploads ===

#[tokio::test]
async fn a_large_upload_needs_no_memory() {
    const LENGTH: usize = 256 * MIB;
    let (mut backend, gateway) = start(Setup::default()).await;
    let mut client = gateway
        .send(upload_head(&format!("content-length: {LENGTH}")))
        .await;
    let (part, mut sent) = (vec![b'x'; MIB], 0);
    // The backend does not read yet. So the client can send only what the sockets and one part in the gateway
    // can hold.
    let pause = Duration::from_millis(500);
    while let Ok(count) = tokio::time::timeout(pause, client.write(&part)).await {
        sent += count.unwrap();
        assert!(
            sent < 64 * MIB,
            "the gateway takes bytes that the backend does not read"
        );
    }
    backend.gate.add_permits(1);
    while sent < LENGTH {
        sent += client
            .write(&part[..part.len().min(LENGTH - sent)])
            .await
            .unwrap();
    }
    let answer = read_rest(&mut client).await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with(&LENGTH.to_string()),
        "{answer}"
    );
    let record = record(&gateway).await;
    assert_eq!(
        (record.bytes_in, record.outcome),
        (LENGTH as u64, Outcome::Ok)
    );
    assert_eq!(
        (record.model.as_str(), record.route),
        ("tiny", Some(UPLOAD))
    );
    assert_eq!(backend.next_end().await, Ok(LENGTH));
}

#[tokio::test]
async fn a_chunked_upload_reaches_the_backend_in_chunks() {
    let (mut backend, gateway) = start(Setup::default()).await;
    backend.gate.add_permits(1);
    let body = "5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n";
    let answer = gateway
        .raw(upload_head("transfer-encoding: chunked") + body)
        .await;
    assert_eq!(status(&answer), 200);
    assert_eq!(backend.next_end().await, Ok(8));
    assert_eq!(record(&gateway).await.bytes_in, 8);
}

#[tokio::test]
async fn a_disconnect_during_an_upload_is_recorded() {
    let (mut backend, gateway) = start(Setup::default()).await;
    backend.gate.add_permits(1);
    let mut client = gateway
        .send(upload_head("content-length: 1000") + "only this")
        .await;
    client.shutdown().await.unwrap();
    assert_eq!(backend.next_end().await, Err(9));
    let record = record(&gateway).await;
    assert_eq!((record.bytes_in, record.refusal), (9, Some("body_cut")));
    assert_eq!(gateway.pool.backends()[0].load.in_flight(), 0);
}

#[tokio::test]
async fn uploads_have_a_limit_and_permissions() {
    let (backend, gateway) = start(Setup::default()).await;
    let head = upload_head(&format!("content-length: {}", 513 * MIB));
    assert_eq!(status(&gateway.raw(head).await), 413);
    let restricted = TenantEntry {
        models: Some(vec!["other".into()]),
        ..tenant()
    };
    let gateway = self::gateway(
        &backend,
        Setup {
            access: access(restricted),
            ..Setup::default()
        },
    )
    .await;
    let with_key = |key: &str| format!("authorization: Bearer {key}\r\ncontent-length: 0");
    assert_eq!(status(&gateway.raw(upload_head(&with_key(KEY))).await), 403);
    assert_eq!(
        status(&gateway.raw(upload_head(&with_key("wrong"))).await),
        401
    );
    // The gateway must refuse a client that may use only some models, because a WebSocket message could name
    // another model.
    let restricted = TenantEntry {
        models: Some(vec!["tiny".into()]),
        ..tenant()
    };
    let gateway = self::gateway(
        &backend,
        Setup {
            access: access(restricted),
            ..Setup::default()
        },
    )
    .await;
    let handshake = format!("{HANDSHAKE}connection: close\r\nauthorization: Bearer {KEY}\r\n");
    let answer = gateway.raw(realtime_head("?model=tiny", &handshake)).await;
    assert_eq!(status(&answer), 403);
}

// === WebSockets ===

fn realtime_head(query: &str, handshake: &str) -> String {
    format!("GET /v1/realtime{query} HTTP/1.1\r\nhost: g\r\n{handshake}\r\n")
}

/// Opens a WebSocket. The client sends its first bytes together with its handshake.
async fn open(gateway: &Running, query: &str) -> TcpStream {
    open_with(gateway, query, "").await
}

/// Like [`open`], with these additional header lines in the handshake.
async fn open_with(gateway: &Running, query: &str, headers: &str) -> TcpStream {
    let head = realtime_head(query, &format!("{HANDSHAKE}{headers}")) + "first";
    let mut client = gateway.send(head).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nfirst") {
        let reading = tokio::time::timeout(SOON, client.read_buf(&mut answer)).await;
        let text = || String::from_utf8_lossy(&answer).into_owned();
        assert!(reading.expect("an answer").unwrap() > 0, "{}", text());
    }
    let head = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    for expected in [
        "upgrade: websocket",
        "connection: upgrade",
        "sec-websocket-protocol: realtime",
        "x-request-id: ",
    ] {
        assert_eq!(head.matches(expected).count(), 1, "{head}");
    }
    assert!(
        !head.contains("content-length") && !head.contains("transfer-encoding"),
        "{head}"
    );
    client
}

async fn exchange(client: &mut TcpStream, text: &[u8]) {
    client.write_all(text).await.unwrap();
    let mut echo = vec![0; text.len()];
    tokio::time::timeout(SOON, client.read_exact(&mut echo))
        .await
        .expect("an echo")
        .unwrap();
    assert_eq!(echo, text);
}

#[tokio::test]
async fn websocket_bytes_pass_until_the_backend_closes() {
    let (mut backend, gateway) = start(Setup::default()).await;
    let mut client = open(&gateway, "?model=tiny").await;
    exchange(&mut client, b"second").await;
    exchange(&mut client, &vec![0x81; 40_000]).await;
    client.write_all(b"q").await.unwrap();
    assert_eq!(read_rest(&mut client).await, "");
    assert_eq!(backend.next_end().await, Ok(40_012));
    let record = record(&gateway).await;
    assert_eq!((record.status, record.outcome), (Some(101), Outcome::Ok));
    assert_eq!((record.bytes_in, record.bytes_out), (40_012, 40_011));
    assert_eq!(
        (record.end, record.route),
        (Termination::Complete, Some("/v1/realtime"))
    );
    assert_eq!(record.model.as_str(), "tiny");
}

#[tokio::test]
async fn a_clients_close_reaches_the_backend() {
    let (mut backend, gateway) = start(Setup::default()).await;
    let mut client = open(&gateway, "").await;
    exchange(&mut client, b"x").await;
    drop(client);
    assert_eq!(backend.next_end().await, Ok(6));
    let record = record(&gateway).await;
    assert_eq!(
        (record.end, record.outcome),
        (Termination::ClientDisconnected, Outcome::Ok)
    );
    assert_eq!((record.bytes_in, record.bytes_out), (6, 6));
}

#[tokio::test]
async fn a_silent_websocket_ends_after_the_timeout() {
    let websocket_idle = Duration::from_millis(600);
    let (_backend, gateway) = start(Setup {
        websocket_idle,
        ..Setup::default()
    })
    .await;
    let mut client = open(&gateway, "").await;
    let began = std::time::Instant::now();
    while began.elapsed() < 2 * websocket_idle {
        exchange(&mut client, b"x").await;
    }
    assert_eq!(read_rest(&mut client).await, "");
    let record = record(&gateway).await;
    assert_eq!(
        (record.end, record.outcome),
        (Termination::IdleTimeout, Outcome::Timeout)
    );
    assert!(record.duration() + Duration::from_millis(200) >= 3 * websocket_idle);
}

#[tokio::test]
async fn a_shutdown_closes_websockets_at_once() {
    let (_backend, mut gateway) = start(Setup {
        drain: SOON * 10,
        ..Setup::default()
    })
    .await;
    let mut client = open(&gateway, "").await;
    let stopping = tokio::time::timeout(SOON, gateway.stop()).await;
    assert_eq!(
        stopping.expect("the drain does not wait for the connection"),
        DrainOutcome::Whole
    );
    assert_eq!(read_rest(&mut client).await, "");
    let record = record(&gateway).await;
    assert_eq!(
        (record.end, record.outcome),
        (Termination::Shutdown, Outcome::Shutdown)
    );
}

#[tokio::test]
async fn a_removed_key_closes_its_websocket() {
    let access = access(tenant());
    let (_backend, gateway) = start(Setup {
        access: access.clone(),
        ..Setup::default()
    })
    .await;
    let mut client = open_with(&gateway, "", &format!("authorization: Bearer {KEY}\r\n")).await;
    let reload = |tenants: Vec<TenantEntry>| access.replace_keys(Some(&KeyFile { tenants }));
    reload(vec![tenant()]);
    exchange(&mut client, b"still").await;
    reload(Vec::new());
    assert_eq!(read_rest(&mut client).await, "");
    let record = record(&gateway).await;
    assert_eq!(
        (record.outcome, record.end),
        (Outcome::Cancelled, Termination::KeyRevoked)
    );
}

#[tokio::test]
async fn a_removed_tenant_closes_websockets_of_tokens() {
    let access = access(tenant());
    access.accept_tokens(Arc::new(TenantNames));
    let (_backend, gateway) = start(Setup {
        access: access.clone(),
        ..Setup::default()
    })
    .await;
    let mut client = open_with(&gateway, "", "authorization: Bearer token-of-a\r\n").await;
    let reload = |tenants: Vec<TenantEntry>| access.replace_keys(Some(&KeyFile { tenants }));
    reload(vec![TenantEntry {
        keys: Vec::new(),
        ..tenant()
    }]);
    exchange(&mut client, b"still").await;
    reload(vec![other_tenant(tenant())]);
    assert_eq!(read_rest(&mut client).await, "");
    assert_eq!(record(&gateway).await.end, Termination::KeyRevoked);
}

#[tokio::test]
async fn only_a_valid_handshake_opens_a_websocket() {
    let (_backend, gateway) = start(Setup::default()).await;
    for handshake in [
        String::new(),
        HANDSHAKE.replace("upgrade: websocket", "upgrade: h2c"),
        HANDSHAKE.replace("version: 13", "version: 8"),
        HANDSHAKE.replace("connection: Upgrade", "connection: close"),
        format!("{HANDSHAKE}upgrade: h2c\r\n"),
        format!("{HANDSHAKE}content-length: 5\r\n"),
    ] {
        let handshake = format!("{handshake}connection: close\r\n");
        let answer = gateway.raw(realtime_head("", &handshake) + "hello").await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            text.starts_with("HTTP/1.1 426 ") && text.contains("\r\nupgrade: websocket"),
            "{text}"
        );
        assert!(
            text.contains("x-gateway-error: websocket_required"),
            "{text}"
        );
    }
    let close = format!("{HANDSHAKE}connection: close\r\n");
    assert_eq!(
        status(&gateway.raw(realtime_head("?wrong=1", &close)).await),
        502
    );
    assert_eq!(
        status(&gateway.raw(realtime_head("?refuse=1", &close)).await),
        403
    );
    let mut sender = http2_client::handshake(gateway.connect().await).await;
    let request =
        http::Request::get("http://gateway/v1/realtime").body(http_body_util::Full::default());
    sender.ready().await.unwrap();
    let response = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), 426);
    // On another path, a request with an `upgrade` header is an ordinary request.
    let chat = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n{close}content-length: 2\r\n\r\n{{}}"
    );
    let answer = gateway.raw(chat).await;
    assert!(
        [400, 404].contains(&status(&answer)),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}
