//! An OpenTelemetry Collector behind mutual TLS. Spans of the program reach it compressed over both
//! transports (gRPC and HTTP). No data reaches a collector with an untrusted certificate.

use crate::support::certificates::{Authority, Files, start_tls_terminator};
use crate::support::process::GatewayProcess;
use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, USAGE, WORD, stream_of};
use crate::support::test_gateway::{ASK_STREAM, CHAT, post, read_rest, send_to, status};
use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::routing::post as on_post;
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedSender};
use tonic::codec::CompressionEncoding;

#[derive(Clone)]
struct Service(UnboundedSender<usize>);

impl Service {
    fn spans(&self, message: &ExportTraceServiceRequest) {
        let spans = message.resource_spans[0].scope_spans[0].spans.len();
        let _ = self.0.send(spans);
    }
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.spans(request.get_ref());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

fn unzipped(body: &Bytes) -> ExportTraceServiceRequest {
    let mut plain = Vec::new();
    GzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap();
    ExportTraceServiceRequest::decode(&plain[..]).unwrap()
}

/// Middleware that asserts that every message is compressed with gzip.
async fn only_compressed(request: Request, next: Next) -> axum::response::Response {
    let headers = request.headers();
    let encoding = headers.get("grpc-encoding").or(headers.get("content-encoding"));
    assert_eq!(encoding.unwrap(), "gzip");
    next.run(request).await
}

/// Starts a collector without TLS that accepts OTLP over gRPC and over HTTP on the same port. Sends the
/// number of spans of each message to `messages`.
async fn collector(messages: UnboundedSender<usize>) -> SocketAddr {
    let service = Service(messages);
    let traces = TraceServiceServer::new(service.clone());
    let take_spans = move |body: Bytes| {
        service.spans(&unzipped(&body));
        std::future::ready(())
    };
    let router = Router::new()
        .route("/v1/traces", on_post(take_spans))
        .route_service(
            "/opentelemetry.proto.collector.trace.v1.TraceService/{*method}",
            traces.accept_compressed(CompressionEncoding::Gzip),
        )
        .layer(from_fn(only_compressed));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, router).await });
    addr
}

async fn backend() -> ScriptedBackend {
    ScriptedBackend::answering(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])).await
}

/// Starts the program in front of this backend, with additional environment variables, and sends a
/// request. The program samples every request and exports its spans after 20 ms.
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
async fn spans_reach_a_collector_behind_tls() {
    let (files, authority) = (Files::new("collector"), Authority::new());
    let (pair, own) = (authority.signs("127.0.0.1", 2040), authority.signs("gateway.test", 2040));
    let ca = files.write("ca.pem", &authority.pem());
    let (cert, key) = (files.write("own.pem", &own.cert), files.write("own-key.pem", &own.key));
    let fake = backend().await;
    for (protocol, alpn) in [("grpc", "h2"), ("http/protobuf", "http/1.1")] {
        let (sender, mut messages) = mpsc::unbounded_channel();
        let plain = collector(sender).await;
        let addr = start_tls_terminator(plain, &pair, Some(&authority), &[alpn]).await;
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
        let mut spans = 0;
        while spans < 3 {
            spans += messages.recv().await.unwrap();
        }
    }
}

#[tokio::test]
async fn no_data_reaches_an_untrusted_collector_and_the_log_names_the_reason() {
    let (files, authority) = (Files::new("stranger"), Authority::new());
    let pair = authority.signs("127.0.0.1", 2040);
    let ca = files.write("ca.pem", &Authority::new().pem());
    let fake = backend().await;
    let (sender, mut messages) = mpsc::unbounded_channel();
    let addr = start_tls_terminator(collector(sender).await, &pair, None, &["h2"]).await;
    let endpoint = format!("https://{addr}");
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", text(&ca)),
    ];
    let gateway = after_a_request(&fake, &variables).await;
    wait_until!(gateway.log().contains("span export failed"));
    assert!(messages.try_recv().is_err());
}
