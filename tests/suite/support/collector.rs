//! A collector of spans, for tests and benches. It accepts OTLP over gRPC and over HTTP on the same port, and
//! counts the spans.

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;
use tonic::codec::CompressionEncoding;

pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    spans: Arc<AtomicU64>,
}

impl Collector {
    pub(crate) async fn start(layered: impl FnOnce(Router) -> Router) -> Self {
        let spans = Arc::<AtomicU64>::default();
        let counter = SpanCounter(spans.clone());
        let service = TraceServiceServer::new(counter.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(usize::MAX);
        let count_unzipped = move |body: Bytes| {
            counter.count(&unzipped(&body));
            std::future::ready(())
        };
        let path = "/opentelemetry.proto.collector.trace.v1.TraceService/{*method}";
        let router = Router::new()
            .route("/v1/traces", post(count_unzipped))
            .route_service(path, service);
        let router = layered(router);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await });
        Self { address, spans }
    }

    pub(crate) fn spans(&self) -> u64 {
        self.spans.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct SpanCounter(Arc<AtomicU64>);

impl SpanCounter {
    fn count(&self, message: &ExportTraceServiceRequest) {
        let scopes = message.resource_spans.iter().flat_map(|it| &it.scope_spans);
        let spans = scopes.map(|scope| scope.spans.len() as u64).sum();
        self.0.fetch_add(spans, Ordering::Relaxed);
    }
}

#[tonic::async_trait]
impl TraceService for SpanCounter {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.count(request.get_ref());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

fn unzipped(body: &Bytes) -> ExportTraceServiceRequest {
    let mut plain = Vec::new();
    GzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap();
    ExportTraceServiceRequest::decode(&plain[..]).unwrap()
}
