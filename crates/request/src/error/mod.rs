//! The errors with which the gateway answers a request itself. Each error is an enum variant and has a row in a
//! table: status, party at fault, and time until a retry.

mod gateway_error;

mod table;

mod envelope;

use crate::record::Outcome;
use bytes::Bytes;
pub use envelope::ErrorEnvelope;
pub use gateway_error::{GatewayError, OptionError, RateLimitKind, listed, truncate_model_name};
use http::header::{ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, RETRY_AFTER, UPGRADE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
pub use table::{Fault, REASONS, SHED_REASONS};
use tokenweir_protocol::headers::{X_GATEWAY_ERROR, X_SHOULD_RETRY};
use tokenweir_protocol::http1::content_encoding::ContentEncoding;
use tokenweir_protocol::http1::websocket;

impl GatewayError {
    /// The HTTP status, from the table of errors.
    pub fn status(&self) -> StatusCode {
        self.row().status()
    }

    /// Who caused the error: client, backend or neither.
    pub fn fault(&self) -> Fault {
        self.row().fault
    }

    /// The outcome of a request that the gateway answered with this error, for its record.
    pub fn outcome(&self) -> Outcome {
        match (self, self.fault()) {
            (
                Self::ResponseHeadTimeout { .. }
                | Self::FirstOutputTimeout { .. }
                | Self::TotalTimeout { .. },
                _,
            ) => Outcome::Timeout,
            // The client disconnected before the end of the body, or has stopped waiting for the response.
            (Self::IncompleteBody | Self::ClientTimeout { .. }, _) => Outcome::Cancelled,
            (_, Fault::Client) => Outcome::ClientError,
            (_, Fault::Backend) => Outcome::UpstreamError,
            (_, Fault::Gateway) => Outcome::Rejected,
        }
    }

    /// The response, in OpenAI's error envelope.
    pub fn response(&self) -> Response<Full<Bytes>> {
        self.to_response_in(ErrorEnvelope::OpenAi, None)
    }

    /// The response in the given error envelope. Only Anthropic's envelope contains the request id.
    pub fn to_response_in(
        &self,
        envelope: ErrorEnvelope,
        request_id: Option<&str>,
    ) -> Response<Full<Bytes>> {
        let row = self.row();
        let body = envelope.body(self, request_id);
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
        *response.status_mut() = row.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(X_GATEWAY_ERROR, HeaderValue::from_static(row.reason));
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // The SDKs of OpenAI and Anthropic retry after 5xx, but a retry of these errors would fail again.
        if matches!(self, Self::Poison | Self::Loop) {
            headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if row.status() == StatusCode::UNAUTHORIZED {
            let challenge = if *self == Self::InvalidToken {
                "Bearer error=\"invalid_token\""
            } else {
                "Bearer"
            };
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Self::MethodNotAllowed { allow } | Self::UpgradeNotOffered { allow } = self {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        match self {
            Self::WebSocketRequired => headers.insert(UPGRADE, websocket::PROTOCOL),
            Self::UpgradeNotOffered { .. } => {
                headers.insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"))
            }
            Self::EncodedBody { .. } => headers.insert(ACCEPT_ENCODING, ContentEncoding::ACCEPTED),
            _ => None,
        };
        response
    }
}

#[cfg(test)]
mod tests;
