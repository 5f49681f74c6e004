//! The way to the collector: OTLP over gRPC, or over HTTP. One connection is kept from push to
//! push.

use super::{Settings, StartError};
use crate::telemetry::collector::{self, Http, MAX_ANSWER};
use crate::telemetry::otel::Protocol;
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
use tokenweir_net::tls::Outbound;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

/// A way to send.
pub(super) enum Transport {
    Grpc { client: MetricsServiceClient<Channel>, headers: MetadataMap },
    Http { client: Box<Http>, url: Uri, headers: HeaderMap, is_gzip: bool },
}

/// Why the collector did not take a push.
#[derive(Debug, thiserror::Error)]
pub(super) enum PushError {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the push panicked; see the error before this line")]
    Panicked,
    #[error("no connection, or it broke: {0}")]
    Connection(#[from] hyper_util::client::legacy::Error),
    #[error("{code:?}: {message}")]
    Grpc { code: tonic::Code, message: String },
    #[error("the collector answered {0}")]
    Http(StatusCode),
    #[error("it cannot be compressed: {0}")]
    Compression(#[from] std::io::Error),
    #[error("the answer of the collector cannot be read")]
    Answer,
    #[error("the collector left out {points} points: {message}")]
    Partial { points: i64, message: String },
}

// === impl Transport ===

impl Transport {
    pub(super) fn new(settings: &Settings, outbound: &Arc<Outbound>) -> Result<Self, StartError> {
        let url: Uri = settings.endpoint.parse()?;
        let mut headers = settings.headers.clone();
        Ok(match settings.protocol {
            Protocol::Grpc => {
                let connector = collector::connector(outbound);
                let channel = Endpoint::from(url).connect_with_connector_lazy(connector);
                let client = MetricsServiceClient::new(channel);
                let client = if settings.is_gzip {
                    client.send_compressed(CompressionEncoding::Gzip)
                } else {
                    client
                };
                Self::Grpc { client, headers: MetadataMap::from_headers(headers) }
            }
            Protocol::HttpProtobuf => {
                let media_type = HeaderValue::from_static("application/x-protobuf");
                headers.insert(CONTENT_TYPE, media_type);
                if settings.is_gzip {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                }
                let client = Box::new(collector::http(outbound));
                Self::Http { client, url, headers, is_gzip: settings.is_gzip }
            }
        })
    }

    /// Sends one request. It takes as long as the collector does.
    pub(super) async fn send(&self, message: ExportMetricsServiceRequest) -> Result<(), PushError> {
        let answer = match self {
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
                let message = if *is_gzip { zipped(&message)? } else { message };
                let mut request = Request::new(Full::new(message.into()));
                *request.method_mut() = Method::POST;
                *request.uri_mut() = url.clone();
                *request.headers_mut() = headers.clone();
                let response = client.request(request).await?;
                if response.status() != StatusCode::OK {
                    return Err(PushError::Http(response.status()));
                }
                let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
                let body = body.map_err(|_| PushError::Answer)?.to_bytes();
                ExportMetricsServiceResponse::decode(body).map_err(|_| PushError::Answer)?
            }
        };
        match answer.partial_success {
            Some(partial) if partial.rejected_data_points > 0 => Err(PushError::Partial {
                points: partial.rejected_data_points,
                message: partial.error_message,
            }),
            _ => Ok(()),
        }
    }
}

fn zipped(message: &[u8]) -> Result<Vec<u8>, PushError> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(message)?;
    Ok(encoder.finish()?)
}

// === impl PushError ===

impl From<tonic::Status> for PushError {
    fn from(status: tonic::Status) -> Self {
        Self::Grpc { code: status.code(), message: status.message().to_owned() }
    }
}
