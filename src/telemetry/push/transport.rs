//! The way to the collector: OTLP over gRPC, or over HTTP. One connection is kept from push to
//! push.

use super::{Settings, StartError};
use crate::telemetry::otel::Protocol;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message;
use std::time::Duration;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

/// A way to send.
pub(super) enum Transport {
    Grpc { channel: Channel, headers: MetadataMap },
    Http { client: Box<Client<HttpConnector, Full<Bytes>>>, url: Uri, headers: HeaderMap },
}

/// Why the collector did not take a push.
#[derive(Debug, thiserror::Error)]
pub(super) enum PushError {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("no connection, or it broke: {0}")]
    Connection(#[from] hyper_util::client::legacy::Error),
    #[error("{code:?}: {message}")]
    Grpc { code: tonic::Code, message: String },
    #[error("the collector answered {0}")]
    Http(StatusCode),
    #[error("the answer of the collector cannot be read")]
    Answer,
    #[error("the collector left out {points} points: {message}")]
    Partial { points: i64, message: String },
}

/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 64 << 10;

// === impl Transport ===

impl Transport {
    pub(super) fn new(settings: &Settings) -> Result<Self, StartError> {
        let url: Uri = settings.endpoint.parse()?;
        let mut headers = settings.headers.clone();
        Ok(match settings.protocol {
            Protocol::Grpc => {
                let channel = Endpoint::from(url).connect_lazy();
                Self::Grpc { channel, headers: MetadataMap::from_headers(headers) }
            }
            Protocol::HttpProtobuf => {
                let media_type = HeaderValue::from_static("application/x-protobuf");
                headers.insert(CONTENT_TYPE, media_type);
                let client = Client::builder(TokioExecutor::new()).build_http();
                Self::Http { client: Box::new(client), url, headers }
            }
        })
    }

    /// Sends one request. It takes as long as the collector does.
    pub(super) async fn send(&self, message: ExportMetricsServiceRequest) -> Result<(), PushError> {
        let answer = match self {
            Self::Grpc { channel, headers } => {
                let request = tonic::Request::from_parts(
                    headers.clone(),
                    tonic::Extensions::default(),
                    message,
                );
                MetricsServiceClient::new(channel.clone()).export(request).await?.into_inner()
            }
            Self::Http { client, url, headers } => {
                let mut request = Request::new(Full::new(message.encode_to_vec().into()));
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

// === impl PushError ===

impl From<tonic::Status> for PushError {
    fn from(status: tonic::Status) -> Self {
        Self::Grpc { code: status.code(), message: status.message().to_owned() }
    }
}
