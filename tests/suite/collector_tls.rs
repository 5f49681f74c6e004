//! An OpenTelemetry Collector behind mutual TLS. Spans of the program reach it compressed over both
//! transports (gRPC and HTTP). No data reaches a collector with an untrusted certificate.

use crate::support::certificates::{Authority, Files, start_tls_terminator};
use crate::support::collector::Collector;
use crate::support::process::GatewayProcess;
use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, USAGE, WORD, stream_of};
use crate::support::test_gateway::{ASK_STREAM, CHAT, post, read_rest, send_to, status};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use std::path::Path;

/// Axum middleware that asserts that every message is compressed with gzip.
async fn only_compressed(request: Request, next: Next) -> axum::response::Response {
    let headers = request.headers();
    let encoding = headers
        .get("grpc-encoding")
        .or(headers.get("content-encoding"));
    assert_eq!(encoding.unwrap(), "gzip");
    next.run(request).await
}

async fn collector() -> Collector {
    Collector::start(|router| router.layer(from_fn(only_compressed))).await
}

async fn backend() -> ScriptedBackend {
    ScriptedBackend::answering(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])).await
}

/// Starts the gateway as a program in front of this backend, with additional environment variables, and sends
/// a request. The program samples every request and exports its spans after 20 ms.
async fn after_a_request(fake: &ScriptedBackend, variables: &[(&str, &str)]) -> GatewayProcess {
    let url = format!("http://{}", fake.addr);
    let own = [
        ("TOKENWEIR_BACKEND", url.as_str()),
        ("TOKENWEIR_LISTEN", "127.0.0.1:0"),
        ("OTEL_TRACES_SAMPLER", "always_on"),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ];
    let gateway = GatewayProcess::start_without_file(&[&own[..], variables].concat()).await;
    let connection = send_to(gateway.clients(), post(CHAT, ASK_STREAM)).await;
    assert_eq!(status(&read_rest(connection).await), 200);
    gateway
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn trace_spans_reach_a_collector_behind_tls() {
    let (files, authority) = (Files::new("collector"), Authority::new());
    let (pair, own) = (
        authority.signs("127.0.0.1", 2040),
        authority.signs("gateway.test", 2040),
    );
    let ca = files.write("ca.pem", &authority.pem());
    let (cert, key) = (
        files.write("own.pem", &own.cert),
        files.write("own-key.pem", &own.key),
    );
    let fake = backend().await;
    for (protocol, alpn) in [("grpc", "h2"), ("http/protobuf", "http/1.1")] {
        let collector = collector().await;
        let addr = start_tls_terminator(collector.address, &pair, Some(&authority), &[alpn]).await;
        let endpoint = format!("https://{addr}");
        let _gateway = after_a_request(
            &fake,
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", text(&ca)),
                ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", text(&cert)),
                ("OTEL_EXPORTER_OTLP_CLIENT_KEY", text(&key)),
            ],
        )
        .await;
        wait_until!(collector.spans() >= 3);
    }
}

#[tokio::test]
async fn an_untrusted_collector_gets_no_span() {
    let (files, authority) = (Files::new("stranger"), Authority::new());
    let pair = authority.signs("127.0.0.1", 2040);
    let ca = files.write("ca.pem", &Authority::new().pem());
    let fake = backend().await;
    let collector = collector().await;
    let addr = start_tls_terminator(collector.address, &pair, None, &["h2"]).await;
    let endpoint = format!("https://{addr}");
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", text(&ca)),
    ];
    let gateway = after_a_request(&fake, &variables).await;
    wait_until!(gateway.log().contains("span export failed"));
    assert_eq!(collector.spans(), 0);
}
