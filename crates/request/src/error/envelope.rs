//! The format of an error body: OpenAI's, or Anthropic's on the paths of the Messages API.

use super::gateway_error::GatewayError;
use serde_json::{Value, json};

/// The format of an error body, which depends on the path of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorEnvelope {
    /// `{"error":{"message":...,"type":...,"param":...,"code":...}}`
    OpenAi,
    /// `{"type":"error","error":{"type":...,"message":...},"request_id":...}`
    Anthropic,
}

/// The first path of Anthropic's Messages API. Its other paths begin with this path and a slash.
const ANTHROPIC_MESSAGES_PATH: &str = "/v1/messages";

impl ErrorEnvelope {
    /// Anthropic's envelope for the paths of its Messages API, otherwise OpenAI's.
    pub fn for_path(path: &str) -> Self {
        match path.strip_prefix(ANTHROPIC_MESSAGES_PATH) {
            Some(subpath) if subpath.is_empty() || subpath.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    /// The error body. Only Anthropic's envelope contains the request id.
    pub(super) fn body(self, error: &GatewayError, request_id: Option<&str>) -> Value {
        let row = error.row();
        let message = error.to_string();
        let status = row.status().as_u16();
        match self {
            Self::OpenAi => json!({ "error": {
                "message": message,
                "type": row.kind(),
                "param": error.param(),
                "code": error.code().map_or_else(|| status.into(), Value::from),
            }}),
            Self::Anthropic => json!({
                "type": "error",
                "error": { "type": anthropic_type(status), "message": message },
                "request_id": request_id,
            }),
        }
    }
}

/// The `error.type` that Anthropic defines for a status.
const fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::tests::rate_limited;
    use crate::error::{GatewayError, RateLimitKind};

    #[test]
    fn messages_paths_use_the_anthropic_envelope() {
        for path in [
            "/v1/messages",
            "/v1/messages/count_tokens",
            "/v1/messages/none",
        ] {
            assert_eq!(
                ErrorEnvelope::for_path(path),
                ErrorEnvelope::Anthropic,
                "{path}"
            );
        }
        for path in [
            "/v1/chat/completions",
            "/v1/messagesx",
            "/messages",
            "/",
            "",
        ] {
            assert_eq!(
                ErrorEnvelope::for_path(path),
                ErrorEnvelope::OpenAi,
                "{path}"
            );
        }
    }

    #[test]
    fn anthropic_types_follow_from_the_status() {
        for (error, expected) in [
            (GatewayError::BadHead, "invalid_request_error"),
            (
                GatewayError::MethodNotAllowed { allow: "POST" },
                "invalid_request_error",
            ),
            (
                GatewayError::EncodedBody {
                    encoding: "gzip".into(),
                },
                "invalid_request_error",
            ),
            (GatewayError::InvalidApiKey, "authentication_error"),
            (
                GatewayError::ModelNotAllowed { model: "a".into() },
                "permission_error",
            ),
            (
                GatewayError::NotFound {
                    path: "/x".into(),
                    nearest: None,
                },
                "not_found_error",
            ),
            (GatewayError::BodyTooLarge { limit: 1 }, "request_too_large"),
            (rate_limited(RateLimitKind::Tokens), "rate_limit_error"),
            (
                GatewayError::Saturated { retry_after: 1 },
                "rate_limit_error",
            ),
            (GatewayError::NoBackend, "overloaded_error"),
            (GatewayError::Closed, "api_error"),
            (
                GatewayError::ResponseHeadTimeout { seconds: 1 },
                "timeout_error",
            ),
            (GatewayError::Internal, "api_error"),
        ] {
            let response = error.to_response_in(ErrorEnvelope::Anthropic, Some("id-1"));
            assert_eq!(response.status(), error.status());
            let body = response.into_body().into_inner().unwrap_or_default();
            let expected = json!({
                "type": "error",
                "error": { "type": expected, "message": error.to_string() },
                "request_id": "id-1",
            });
            assert_eq!(serde_json::from_slice::<Value>(&body).ok(), Some(expected));
        }
    }
}
