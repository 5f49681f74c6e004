//! Metrics push: the metrics that a collector receives from the program over both transports,
//! configured by the OpenTelemetry environment variables, periodically and once at shutdown.

use crate::support::process::in_front_of;
use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, USAGE, WORD, stream_of};
use crate::support::test_gateway::post;
use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post as on_post;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::NumberDataPoint;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use prost::Message;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// A received push: an identifying header and the message.
type Push = (String, ExportMetricsServiceRequest);

struct Service(mpsc::UnboundedSender<Push>);

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        let key = request.metadata().get("x-key").unwrap().to_str().unwrap().to_owned();
        let _ = self.0.send((key, request.into_inner()));
        Ok(tonic::Response::new(ExportMetricsServiceResponse::default()))
    }
}

/// A collector that accepts both transports on one port.
async fn collector() -> (SocketAddr, mpsc::UnboundedReceiver<Push>) {
    let (sender, pushes) = mpsc::unbounded_channel();
    let grpc = MetricsServiceServer::new(Service(sender.clone()));
    let http = move |headers: HeaderMap, body: Bytes| async move {
        assert_eq!(headers["content-type"], "application/x-protobuf");
        let key = headers["x-key"].to_str().unwrap().to_owned();
        let _ = sender.send((key, ExportMetricsServiceRequest::decode(body).unwrap()));
    };
    let router = Router::new()
        .route("/v1/metrics", on_post(http))
        .route_service("/opentelemetry.proto.collector.metrics.v1.MetricsService/{*method}", grpc);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, router).await });
    (addr, pushes)
}

/// Starts the program in front of this backend with metrics push. Returns the process and the
/// client address.
async fn serve(fake: &ScriptedBackend, variables: &[(&str, &str)]) -> (Child, SocketAddr) {
    let pushing = [
        ("OTEL_METRICS_EXPORTER", "otlp"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b"),
    ];
    let (child, clients, _) = in_front_of(fake, &[variables, &pushing].concat()).await;
    (child, clients)
}

async fn chat(gateway: SocketAddr) {
    let mut stream = TcpStream::connect(gateway).await.unwrap();
    let request = post("/v1/chat/completions", r#"{"model":"tiny","stream":true}"#);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn has(attributes: &[KeyValue], key: &str, text: &str) -> bool {
    attributes.iter().any(|attribute| {
        attribute.key == key && format!("{:?}", attribute.value).contains(&format!("\"{text}\""))
    })
}

/// Number of successful requests for `tiny` in a message.
fn successful_requests(push: &ExportMetricsServiceRequest) -> f64 {
    let metrics = &push.resource_metrics[0].scope_metrics[0].metrics;
    let metrics = metrics.iter().filter(|metric| metric.name == "tokenweir.requests");
    let points = metrics.flat_map(|metric| match &metric.data {
        Some(Data::Sum(sum)) => sum.data_points.as_slice(),
        _ => &[],
    });
    let is_it = |point: &&NumberDataPoint| {
        has(&point.attributes, "gen_ai.request.model", "tiny")
            && has(&point.attributes, "outcome", "ok")
    };
    let value = |point: &NumberDataPoint| match point.value {
        Some(Value::AsDouble(value)) => value,
        _ => f64::NAN,
    };
    points.filter(is_it).map(value).sum()
}

fn assert_pushed_by_gateway((key, push): &Push) {
    assert_eq!(key, "a b");
    let resource = push.resource_metrics[0].resource.as_ref().unwrap();
    assert!(has(&resource.attributes, "service.name", "edge"), "{resource:?}");
    assert!(has(&resource.attributes, "service.instance.id", "one"), "{resource:?}");
}

const COLLECTOR_VARIABLES: [(&str, &str); 2] =
    [("OTEL_SERVICE_NAME", "edge"), ("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=one")];

#[tokio::test]
async fn metrics_are_pushed_periodically_over_both_transports() {
    let fake =
        ScriptedBackend::answering(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])).await;
    for protocol in ["grpc", "http/protobuf"] {
        let (addr, mut pushes) = collector().await;
        let endpoint = format!("http://{addr}");
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_METRIC_EXPORT_INTERVAL", "20"),
        ];
        let (_child, gateway) =
            serve(&fake, &[&variables[..], &COLLECTOR_VARIABLES].concat()).await;
        chat(gateway).await;
        let mut seen = 0;
        while seen < 3 {
            let push = pushes.recv().await.unwrap();
            assert_pushed_by_gateway(&push);
            seen += usize::from(successful_requests(&push.1) > 0.5);
        }
    }
}

#[tokio::test]
async fn the_final_push_contains_changes_since_the_previous_push() {
    let fake =
        ScriptedBackend::answering(stream_of(&[ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"])).await;
    let (addr, mut pushes) = collector().await;
    let endpoint = format!("http://{addr}");
    let variables = [("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint.as_str())];
    let (mut child, gateway) = serve(&fake, &[&variables[..], &COLLECTOR_VARIABLES].concat()).await;
    chat(gateway).await;
    assert!(pushes.try_recv().is_err(), "the first periodic push is due in a minute");
    let id = child.id().unwrap().to_string();
    Command::new("kill").args(["-INT", &id]).status().await.unwrap();
    assert!(child.wait().await.unwrap().success());
    let mut well_told = 0.0;
    while let Ok(push) = pushes.try_recv() {
        assert_pushed_by_gateway(&push);
        well_told += successful_requests(&push.1);
    }
    assert!((well_told - 1.0).abs() < 0.5, "{well_told}");
}
