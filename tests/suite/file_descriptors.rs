//! A gateway that has few file descriptors. It rejects connections and requests for which it has none, and
//! does not mark a backend as down for this reason.

use crate::restart::{Port, listed, model, start_backends};
use crate::support::process::{GatewayProcess, folder};
use crate::support::scripted_backend::{ScriptedBackend, json};
use crate::support::test_gateway::{
    CHAT, Setup, gateway_answering_with, get, post, start_before, status,
};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_gateway::backend::Health;
use tokenweir_gateway::server::ServerLimits;
use tokenweir_net::file_descriptors::FileDescriptorPool;
use tokenweir_request::record::Outcome;
use tokenweir_routing::resilience::BreakerState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const WAIT_TIMEOUT: Duration = Duration::from_mins(1);

async fn until<T>(description: &str, wanted: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_TIMEOUT, wanted)
        .await
        .expect(description)
}

/// Opens `count` connections over which the client sends nothing.
async fn silent(addr: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        streams.push(
            until("a connection", TcpStream::connect(addr))
                .await
                .unwrap(),
        );
    }
    streams
}

/// Reads until the other side closes or resets the connection. Returns the bytes that were read.
async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    // A reset of the connection counts as a close.
    let _ = until("a close", stream.read_to_end(&mut answer)).await;
    answer
}

async fn ask(addr: SocketAddr) -> String {
    let messages = r#"[{"role":"user","content":"hello"}]"#;
    let body = format!(
        r#"{{"model":"{}","max_tokens":4,"messages":{messages}}}"#,
        model()
    );
    let mut stream = until("a connection", TcpStream::connect(addr))
        .await
        .unwrap();
    // Writing may fail, because the gateway may already have closed an excess connection.
    let _ = stream.write_all(post(CHAT, &body).as_bytes()).await;
    String::from_utf8(read_to_end(&mut stream).await).unwrap()
}

/// Sends `count` requests at the same time. Returns the number of served requests. The gateway must have
/// rejected each other request because of its own limits, or closed the connection without a response.
async fn burst(addr: SocketAddr, count: usize) -> usize {
    let mut asking = JoinSet::new();
    for _ in 0..count {
        asking.spawn(ask(addr));
    }
    let mut served = 0;
    while let Some(answer) = asking.join_next().await {
        let answer = answer.unwrap();
        let is_refusal = answer.starts_with("HTTP/1.1 503 ")
            && answer.contains("retry-after: ")
            && ["overloaded", "gateway_exhausted"]
                .iter()
                .any(|reason| answer.contains(&format!("x-gateway-error: {reason}")));
        let is_served = answer.starts_with("HTTP/1.1 200 ");
        assert!(is_served || is_refusal || answer.is_empty(), "{answer}");
        served += usize::from(is_served);
    }
    served
}

async fn assert_no_backend_is_down(gateway: &GatewayProcess, when: &str) {
    let status: Value = gateway.document("/status").await;
    for backend in status["backends"].as_array().unwrap() {
        assert_eq!(backend["health"], "up", "{when}: {backend}");
        assert_eq!(backend["breaker"], "closed", "{when}: {backend}");
    }
}

/// Opens many connections to both ports of a gateway that may open this number of files.
async fn flood(files: usize) {
    eprintln!("a limit of {files} files");
    // This process contains clients and backends, which need file descriptors, too.
    tokenweir::commands::raise_file_limit();
    let (port, backends) = (Port::reserve(), start_backends(8).await);
    let file = folder(&format!("files-{files}")).join("gateway.yaml");
    port.configure(&file, &listed(&backends));
    let gateway = GatewayProcess::start_with_file_limit(&file, files).await;
    assert_no_backend_is_down(&gateway, "at the start").await;

    let mut operators = silent(gateway.admin, files + 20).await;
    assert_no_backend_is_down(&gateway, "with a flood on the admin port").await;
    let oldest = read_to_end(&mut operators[0]).await;
    assert!(oldest.is_empty(), "the oldest connection was closed");
    let answer = ask(port.addr).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 "),
        "clients are served: {answer}"
    );

    let clients = silent(port.addr, files + 20).await;
    burst(port.addr, 20).await;
    assert_no_backend_is_down(&gateway, "with a flood on both ports").await;
    drop((clients, operators));
    wait_until!(ask(port.addr).await.starts_with("HTTP/1.1 200 "));
    for _ in 0..3 {
        assert!(
            burst(port.addr, files).await > 0,
            "some requests of the burst are served"
        );
        assert_no_backend_is_down(&gateway, "after a burst").await;
    }
    let page = gateway.get("/metrics").await;
    for backend in &backends {
        let unreachable =
            format!("tokenweir_attempts_total{{backend=\"{backend}\",result=\"connect_error\"}}");
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(&unreachable));
        assert!(
            line.is_none_or(|count| count.trim() == "0"),
            "{unreachable} {line:?}"
        );
    }
    let failed = gateway.value("tokenweir_accept_errors_total").await;
    assert!(
        failed.abs() < 0.5,
        "the connection limits fit under the file limit: {failed} errors"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn client_floods_leave_descriptors_for_backends() {
    for files in [64, 128, 400] {
        flood(files).await;
    }
}

#[tokio::test]
async fn without_descriptors_clients_get_503() {
    let descriptors = FileDescriptorPool::new(Some(4));
    let setup = Setup {
        descriptors: descriptors.clone(),
        ..Setup::default()
    };
    let (_fake, gateway) = gateway_answering_with(setup, json("200 OK", r#"{"a":1}"#)).await;
    let mut taken = Vec::new();
    // Without a free descriptor, scrapes fail, too. The error metric of scrapes names this reason.
    let errors = "tokenweir_scrape_errors_total";
    let watching = async {
        loop {
            taken.extend(std::iter::from_fn(|| descriptors.try_acquire()));
            let page = gateway.admin("/metrics").await;
            let failed = page.lines().filter(|line| line.starts_with(errors));
            let mut failed = failed.filter(|line| line.contains("gateway_exhausted"));
            if failed.any(|line| !line.ends_with(" 0")) {
                break;
            }
        }
    };
    until("a scrape", watching).await;
    let answer = String::from_utf8(gateway.post(CHAT, "{}").await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.contains("x-gateway-error: gateway_exhausted"),
        "{answer}"
    );
    assert!(
        answer.contains("retry-after: 1") && answer.contains("LimitNOFILE"),
        "{answer}"
    );
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.refusal),
        (Outcome::Rejected, Some("gateway_exhausted"))
    );
    let backend = gateway.pool.backends()[0].clone();
    assert_eq!(backend.health.state().health, Health::Up);
    assert_eq!(backend.health.breaker.state(), BreakerState::Closed);
    taken.clear();
    wait_until!(status(&gateway.post(CHAT, "{}").await) == 200);
}

#[tokio::test]
async fn an_idle_connection_gives_way_to_another_backend() {
    let backend = || ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#));
    let fakes = [backend().await, backend().await];
    fakes[1].set_models(&["other"]);
    // The pool has two descriptors. One of them is reserved for scrapes.
    let descriptors = FileDescriptorPool::new(Some(2));
    let setup = Setup {
        descriptors,
        ..Setup::default()
    };
    let gateway = start_before(&fakes, setup).await;
    for model in ["tiny", "other", "tiny", "other"] {
        let answer = gateway
            .post(CHAT, &format!(r#"{{"model":"{model}"}}"#))
            .await;
        assert_eq!(status(&answer), 200, "{model}");
    }
    assert_eq!((fakes[0].seen().len(), fakes[1].seen().len()), (2, 2));
}

#[tokio::test]
async fn the_admin_listener_closes_the_oldest_idle_connection() {
    let limits = ServerLimits {
        max_admin_connections: 2,
        ..ServerLimits::default()
    };
    let setup = Setup {
        limits,
        ..Setup::default()
    };
    let (_fake, gateway) = gateway_answering_with(setup, json("200 OK", r#"{"a":1}"#)).await;
    let mut connections = silent(gateway.admin, 2).await;
    let answer = until("a probe", gateway.admin("/livez")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(read_to_end(&mut connections[0]).await.is_empty());
    // The gateway has closed only the oldest idle connection, so the second one is still open.
    connections[1]
        .write_all(get("/livez").as_bytes())
        .await
        .unwrap();
    assert!(
        read_to_end(&mut connections[1])
            .await
            .starts_with(b"HTTP/1.1 200")
    );
}
