//! OTLP transports of the metrics push: gRPC and HTTP. A connection is reused by later pushes.

use super::settings::MetricsPushSettings;
use crate::telemetry::clients::collector_client::{self, CollectorHttpClient, MAX_RESPONSE_BYTES};
use crate::telemetry::otel::OtlpProtocol;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::tls::{OutboundTls, TlsError};
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

/// A client that sends export requests to the collector.
pub(super) enum MetricsPushTransport {
    Grpc { client: MetricsServiceClient<Channel>, headers: MetadataMap },
    Http { client: Box<CollectorHttpClient>, url: Uri, headers: HeaderMap, is_gzip: bool },
}

/// Why the metrics push cannot start.
#[derive(Debug, thiserror::Error)]
pub enum MetricsPushStartError {
    /// The endpoint is not a URL.
    #[error("the endpoint of the metrics push is not a valid URL")]
    Endpoint(#[from] http::uri::InvalidUri),
    /// The TLS files cannot be used.
    #[error("the TLS files of the metrics push cannot be used")]
    Tls(#[from] TlsError),
}

/// Why a push failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum MetricsPushError {
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("the push panicked; the log line before this one has the cause")]
    Panicked,
    #[error("connection to the collector failed: {0}")]
    Connection(#[from] hyper_util::client::legacy::Error),
    #[error("{code:?}: {message}")]
    Grpc { code: tonic::Code, message: String },
    #[error("the collector responded with status {0}")]
    HttpStatus(StatusCode),
    #[error("the message could not be compressed: {0}")]
    Compression(#[from] std::io::Error),
    #[error("the response of the collector is invalid")]
    InvalidResponse,
    #[error("the collector rejected {points} points: {message}")]
    PartialSuccess { points: i64, message: String },
}

// === impl MetricsPushTransport ===

impl MetricsPushTransport {
    pub(super) fn new(
        settings: &MetricsPushSettings,
        outbound: &Arc<OutboundTls>,
    ) -> Result<Self, MetricsPushStartError> {
        let url: Uri = settings.endpoint.parse()?;
        let mut headers = settings.headers.clone();
        Ok(match settings.protocol {
            OtlpProtocol::Grpc => {
                let connector = collector_client::connector(outbound);
                let channel = Endpoint::from(url).connect_with_connector_lazy(connector);
                let client = MetricsServiceClient::new(channel);
                let client = if settings.is_gzip {
                    client.send_compressed(CompressionEncoding::Gzip)
                } else {
                    client
                };
                Self::Grpc { client, headers: MetadataMap::from_headers(headers) }
            }
            OtlpProtocol::HttpProtobuf => {
                let media_type = HeaderValue::from_static("application/x-protobuf");
                headers.insert(CONTENT_TYPE, media_type);
                if settings.is_gzip {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                }
                let client = Box::new(collector_client::http(outbound));
                Self::Http { client, url, headers, is_gzip: settings.is_gzip }
            }
        })
    }

    /// Sends one export request. The caller must set a timeout, because the transport has none.
    pub(super) async fn send(
        &self,
        message: ExportMetricsServiceRequest,
    ) -> Result<(), MetricsPushError> {
        let response = match self {
            Self::Grpc { client, headers } => {
                let request = tonic::Request::from_parts(
                    headers.clone(),
                    tonic::Extensions::default(),
                    message,
                );
                client.clone().export(request).await?.into_inner()
            }
            Self::Http { client, url, headers, is_gzip } => {
                let message = message.encode_to_vec();
                let message = if *is_gzip { gzip(&message)? } else { message };
                let mut request = Request::new(Full::new(message.into()));
                *request.method_mut() = Method::POST;
                *request.uri_mut() = url.clone();
                *request.headers_mut() = headers.clone();
                let response = client.request(request).await?;
                if response.status() != StatusCode::OK {
                    return Err(MetricsPushError::HttpStatus(response.status()));
                }
                let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
                let body = body.map_err(|_| MetricsPushError::InvalidResponse)?.to_bytes();
                ExportMetricsServiceResponse::decode(body)
                    .map_err(|_| MetricsPushError::InvalidResponse)?
            }
        };
        match response.partial_success {
            Some(partial) if partial.rejected_data_points > 0 => {
                Err(MetricsPushError::PartialSuccess {
                    points: partial.rejected_data_points,
                    message: partial.error_message,
                })
            }
            _ => Ok(()),
        }
    }
}

fn gzip(message: &[u8]) -> Result<Vec<u8>, MetricsPushError> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(message)?;
    Ok(encoder.finish()?)
}

// === impl MetricsPushError ===

impl From<tonic::Status> for MetricsPushError {
    fn from(status: tonic::Status) -> Self {
        Self::Grpc { code: status.code(), message: status.message().to_owned() }
    }
}
