//! The shape of an error in a body: that of OpenAI, or on Anthropic's paths that of Anthropic.

use super::table::Row;
use serde_json::{Value, json};

/// Which clients read an error, by the path of their request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Envelope {
    /// `{"error":{"message":...,"type":...,"param":...,"code":...}}`
    OpenAi,
    /// `{"type":"error","error":{"type":...,"message":...},"request_id":...}`
    Anthropic,
}

/// The path of Anthropic's Messages API. Its others begin with it and a slash.
const MESSAGES: &str = "/v1/messages";

impl Envelope {
    /// The envelope on this path.
    pub fn of(path: &str) -> Self {
        match path.strip_prefix(MESSAGES) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    pub(super) fn body(self, row: &Row, message: &str, request_id: Option<&str>) -> Value {
        match self {
            Self::OpenAi => json!({ "error": {
                "message": message,
                "type": row.kind,
                "param": row.param,
                "code": row.code.map_or_else(|| row.status.as_u16().into(), Value::from),
            }}),
            Self::Anthropic => json!({
                "type": "error",
                "error": { "type": anthropic_type(row.status.as_u16()), "message": message },
                "request_id": request_id,
            }),
        }
    }
}

/// `error.type` in Anthropic's words, which follow from the status.
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
    use crate::error::{Error, Limited};

    #[test]
    fn anthropic_has_its_own_envelope_on_its_paths_only() {
        for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/none"] {
            assert_eq!(Envelope::of(path), Envelope::Anthropic, "{path}");
        }
        for path in ["/v1/chat/completions", "/v1/messagesx", "/messages", "/", ""] {
            assert_eq!(Envelope::of(path), Envelope::OpenAi, "{path}");
        }
    }

    #[test]
    fn the_type_of_an_anthropic_error_follows_from_its_status() {
        for (error, expected) in [
            (Error::BadHead, "invalid_request_error"),
            (Error::MethodNotAllowed { allow: "POST" }, "invalid_request_error"),
            (Error::EncodedBody { encoding: "gzip".into() }, "invalid_request_error"),
            (Error::InvalidApiKey, "authentication_error"),
            (Error::ModelNotAllowed { model: "a".into() }, "permission_error"),
            (Error::NotFound { path: "/x".into() }, "not_found_error"),
            (Error::BodyTooLarge { limit: 1 }, "request_too_large"),
            (
                Error::RateLimited { limited: Limited::Tokens, allowed: 1, retry_after: 1 },
                "rate_limit_error",
            ),
            (Error::Saturated { retry_after: 1 }, "rate_limit_error"),
            (Error::NoBackend, "overloaded_error"),
            (Error::Closed, "api_error"),
            (Error::HeaderTimeout { seconds: 1 }, "timeout_error"),
            (Error::Internal, "api_error"),
        ] {
            let response = error.response_in(Envelope::Anthropic, Some("id-1"));
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
