//! A collector of spans. It accepts OTLP over gRPC and counts the spans.

use axum::Router;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;

/// A running collector.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    spans: Arc<AtomicU64>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let spans = Arc::<AtomicU64>::default();
        let path = "/opentelemetry.proto.collector.trace.v1.TraceService/{*method}";
        let service = TraceServiceServer::new(SpanCounter(spans.clone()));
        let service = service.max_decoding_message_size(usize::MAX);
        let router = Router::new().route_service(path, service);
        tokio::spawn(async { axum::serve(listener, router).await });
        Self { address, spans }
    }

    /// Number of spans that the collector has accepted.
    pub(crate) fn spans(&self) -> u64 {
        self.spans.load(Ordering::Relaxed)
    }
}

struct SpanCounter(Arc<AtomicU64>);

#[tonic::async_trait]
impl TraceService for SpanCounter {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let scopes = request.get_ref().resource_spans.iter().flat_map(|it| &it.scope_spans);
        let spans = scopes.map(|scope| scope.spans.len() as u64).sum();
        self.0.fetch_add(spans, Ordering::Relaxed);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}
