//! The external push scaler for KEDA on the admin listener. The tests call it with a gRPC client.

use crate::admission::{NO_SECOND_SCRAPE, SHORT_SCRAPE_INTERVAL, one_at_each, send};
use crate::support::scripted_backend::{Page, ScriptedBackend, Step, json};
use crate::support::test_gateway::{ASK, CHAT, Running, Setup, read_rest, start_with, status};
use std::collections::HashMap;
use std::time::Duration;
use tokenweir::admin::MAX_SCALER_STREAMS;
use tokenweir::config::AdmissionConfig;
use tokenweir_gateway::server::ServerLimits;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// The KEDA message `ScaledObjectRef`.
#[derive(Clone, PartialEq, prost::Message)]
struct Object {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MetricsRequest {
    #[prost(message, optional, tag = "1")]
    object: Option<Object>,
    #[prost(string, tag = "2")]
    metric: String,
}

/// The KEDA message `IsActiveResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct Active {
    #[prost(bool, tag = "1")]
    result: bool,
}

/// The messages `GetMetricSpecResponse` and `GetMetricsResponse` of KEDA, which have the same fields.
#[derive(Clone, PartialEq, prost::Message)]
struct Numbers {
    #[prost(message, repeated, tag = "1")]
    all: Vec<Number>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Number {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "2")]
    integer: i64,
    #[prost(double, tag = "3")]
    float: f64,
}

fn object(metadata: &[(&str, &str)]) -> Object {
    let metadata = metadata
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Object {
        name: "vllm".to_owned(),
        metadata: metadata.collect(),
    }
}

async fn client(gateway: &Running) -> Grpc<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", gateway.admin)).unwrap();
    let mut client = Grpc::new(endpoint.connect().await.unwrap());
    client.ready().await.unwrap();
    client
}

/// Calls `StreamIsActive` for this object on a connection of its own. Returns the stream of answers.
async fn watch(gateway: &Running, object: Object) -> Result<Streaming<Active>, Status> {
    let path = PathAndQuery::from_static("/externalscaler.ExternalScaler/StreamIsActive");
    let codec = ProstCodec::<Object, Active>::default();
    let response = client(gateway)
        .await
        .server_streaming(Request::new(object), path, codec)
        .await;
    response.map(tonic::Response::into_inner)
}

async fn call<Q, A>(client: &mut Grpc<Channel>, method: &str, message: Q) -> Result<A, Status>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let path: PathAndQuery = format!("/externalscaler.ExternalScaler/{method}")
        .parse()
        .unwrap();
    client.ready().await.unwrap();
    let response = client.unary(Request::new(message), path, ProstCodec::<Q, A>::default());
    response.await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn keda_is_told_of_waiting_requests() {
    let fake = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    fake.set_healthy(false);
    fake.set_metrics(Some(Page::of("vllm:num_requests_running 0.0\n")));
    let max_backend_wait = Some(Duration::from_hours(1));
    let admission = AdmissionConfig {
        max_backend_wait,
        ..AdmissionConfig::default()
    };
    let gateway = one_at_each(&[&fake], admission, SHORT_SCRAPE_INTERVAL).await;
    let tiny = || {
        object(&[
            ("model", "tiny"),
            ("requests", "16"),
            ("scalerAddress", "a:9090"),
        ])
    };
    let mut scaler = client(&gateway).await;
    let mut stream = watch(&gateway, tiny()).await.unwrap();
    assert!(!stream.message().await.unwrap().unwrap().result);
    let spec: Numbers = call(&mut scaler, "GetMetricSpec", tiny()).await.unwrap();
    assert_eq!(
        (
            spec.all[0].name.as_str(),
            spec.all[0].integer,
            spec.all[0].float
        ),
        ("requests", 16, 16.0)
    );
    let clients = [
        send(&gateway, "first", "").await,
        send(&gateway, "second", "").await,
    ];
    assert!(stream.message().await.unwrap().unwrap().result);
    let active: Active = call(&mut scaler, "IsActive", tiny()).await.unwrap();
    assert!(active.result);
    wait_until!({
        let request = MetricsRequest {
            object: Some(tiny()),
            metric: "requests".to_owned(),
        };
        let numbers: Numbers = call(&mut scaler, "GetMetrics", request).await.unwrap();
        (numbers.all[0].integer, numbers.all[0].float) == (2, 2.0)
    });
    fake.set_healthy(true);
    for client in clients {
        assert_eq!(status(&read_rest(client).await), 200);
    }
    assert!(!stream.message().await.unwrap().unwrap().result);
}

#[tokio::test]
async fn keda_streams_leave_connections_for_probes() {
    let fake = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    let gateway = one_at_each(&[&fake], AdmissionConfig::default(), NO_SECOND_SCRAPE).await;
    let open = || watch(&gateway, object(&[("model", "tiny")]));
    let mut streams = Vec::new();
    for _ in 0..MAX_SCALER_STREAMS {
        streams.push(open().await.unwrap());
    }
    let mut newest = open().await.unwrap();
    assert!(newest.message().await.unwrap().is_some());
    let mut oldest = streams.remove(0);
    assert!(oldest.message().await.unwrap().is_some());
    assert_eq!(
        oldest.message().await.unwrap_err().code(),
        Code::ResourceExhausted
    );
    assert!(gateway.admin("/livez").await.ends_with("ok\n"));
}

#[tokio::test]
async fn unfinished_requests_do_not_keep_probes_out() {
    let fake = ScriptedBackend::start(|_| vec![Step::AwaitClose]).await;
    fake.set_metrics(Some(Page::of("vllm:num_requests_running 0.0\n")));
    let limits = ServerLimits {
        max_admin_connections: 3,
        ..ServerLimits::default()
    };
    let gateway = start_with(
        &[fake.addr],
        Setup {
            limits,
            ..Setup::default()
        },
    )
    .await;
    let mut keda = watch(&gateway, object(&[("model", "tiny")])).await.unwrap();
    assert!(!keda.message().await.unwrap().unwrap().result);
    let unread = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(500);
    for held in [
        "P",
        "POST /externalscaler.ExternalScaler/GetMetrics HTTP/1.1\r\nhost: a\r\n\
         content-type: application/grpc\r\ncontent-length: 1000\r\n\r\n\0",
        "POST /-/drain HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &unread,
    ] {
        let mut clients = Vec::new();
        for _ in 0..4 {
            let mut client = TcpStream::connect(gateway.admin).await.unwrap();
            client.write_all(held.as_bytes()).await.unwrap();
            clients.push(client);
        }
        for path in ["/livez", "/readyz"] {
            assert!(
                gateway.admin(path).await.starts_with("HTTP/1.1 200"),
                "{path} {held:.40}"
            );
        }
    }
    let _client = gateway.begin(CHAT, ASK).await;
    assert!(
        keda.message().await.unwrap().unwrap().result,
        "the stream of KEDA is open"
    );
}

#[tokio::test]
async fn invalid_calls_get_their_grpc_status() {
    let fake = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    let gateway = one_at_each(&[&fake], AdmissionConfig::default(), NO_SECOND_SCRAPE).await;
    let mut scaler = client(&gateway).await;
    let mut code = async |method: &str, metadata: &[(&str, &str)]| {
        call::<_, Numbers>(&mut scaler, method, object(metadata))
            .await
            .unwrap_err()
            .code()
    };
    assert_eq!(code("IsActive", &[]).await, Code::InvalidArgument);
    assert_eq!(
        code("IsActive", &[("model", "")]).await,
        Code::InvalidArgument
    );
    assert_eq!(code("IsActive", &[("model", "tniy")]).await, Code::NotFound);
    for requests in ["", "0", "-1", "NaN", "inf", "many"] {
        let spec = code(
            "GetMetricSpec",
            &[("model", "tiny"), ("requests", requests)],
        )
        .await;
        assert_eq!(spec, Code::InvalidArgument, "{requests}");
    }
    assert_eq!(
        code("StreamMetricSpec", &[("model", "tiny")]).await,
        Code::Unimplemented
    );
    let long = "m".repeat(100 << 10);
    assert_eq!(
        code("IsActive", &[("model", &long)]).await,
        Code::OutOfRange
    );
}
