//! The errors of vLLM for rejected requests, and the JSON bodies with which vLLM reports them.

use super::simulated_response::GenerationApi;
use super::template::quoted;

/// A rejected request: the HTTP status and the content of the error body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VllmError {
    /// The HTTP status of the response.
    pub status: u16,
    error_type: &'static str,
    message: String,
    param: Option<String>,
}

const VALIDATION_ERROR_TYPE: &str = "Bad Request";

impl VllmError {
    /// The status 404 for a model that is not served.
    pub fn unknown_model(model: &str, served: &[String]) -> Self {
        let aliases = served.join(", ");
        let message = format!("The model `{model}` does not exist. Valid aliases: {aliases}.");
        Self {
            status: 404,
            error_type: "NotFoundError",
            message,
            param: Some("model".to_owned()),
        }
    }

    /// 400: a value that the handler does not accept.
    pub fn bad_value(message: &str, param: Option<(&str, i64)>) -> Self {
        let message = match param {
            Some((name, value)) => format!("{message} (parameter={name}, value={value})"),
            None => message.to_owned(),
        };
        let param = param.map(|(name, _)| name.to_owned());
        Self {
            status: 400,
            error_type: "BadRequestError",
            message,
            param,
        }
    }

    /// The status 400 for `stream_options` in a request without `stream`.
    pub fn stream_options() -> Self {
        let message = "Stream options can only be defined when `stream=True`.";
        let message = format!("{message} (parameter=stream_options)");
        let param = Some("stream_options".to_owned());
        Self {
            status: 400,
            error_type: "BadRequestError",
            message,
            param,
        }
    }

    /// The status 400 for a content type other than JSON.
    pub fn content_type() -> Self {
        let detail = "Unsupported Media Type: Only 'application/json' is allowed";
        Self::validation_error(detail, None)
    }

    /// The status 400 for an empty body.
    pub fn empty_body() -> Self {
        let detail = "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}";
        Self::validation_error(detail, Some("body".to_owned()))
    }

    /// 400: the body is not JSON, or a member has the wrong type.
    pub fn unreadable(error: &serde_json::Error) -> Self {
        let (kind, loc, text) = match error.classify() {
            serde_json::error::Category::Data => {
                ("value_error", "body".to_owned(), &*error.to_string())
            }
            _ => (
                "json_invalid",
                format!("body.{}", error.column()),
                "JSON decode error",
            ),
        };
        let text = text.replace('\'', "\"");
        let detail = format!("{{'type': '{kind}', 'loc': '{loc}', 'msg': '{text}'}}");
        Self::validation_error(&detail, Some(loc))
    }

    /// 400: a required member is missing.
    pub fn missing(field: &str) -> Self {
        let loc = format!("body.{field}");
        let detail = format!("{{'type': 'missing', 'loc': '{loc}', 'msg': 'Field required'}}");
        Self::validation_error(&detail, Some(loc))
    }

    fn validation_error(detail: &str, param: Option<String>) -> Self {
        let message = format!("1 validation error:\n  {detail}");
        Self {
            status: 400,
            error_type: VALIDATION_ERROR_TYPE,
            message,
            param,
        }
    }

    /// Renders the body. Messages has its own error format, except for validation errors.
    pub fn body(&self, api: Option<GenerationApi>) -> String {
        let kind = quoted(self.error_type);
        let message = quoted(&self.message);
        if api == Some(GenerationApi::Messages) && self.error_type != VALIDATION_ERROR_TYPE {
            return format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#);
        }
        let param = self
            .param
            .as_deref()
            .map_or_else(|| "null".to_owned(), quoted);
        let code = self.status;
        format!(
            r#"{{"error":{{"message":{message},"type":{kind},"param":{param},"code":{code}}}}}"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_bodies_equal_those_of_vllm() {
        let model = VllmError::unknown_model("nope", &["tiny".to_owned()]);
        assert_eq!(
            model.body(Some(GenerationApi::Chat)),
            r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.","type":"NotFoundError","param":"model","code":404}}"#
        );
        assert_eq!(
            model.body(Some(GenerationApi::Messages)),
            r#"{"type":"error","error":{"type":"NotFoundError","message":"The model `nope` does not exist. Valid aliases: tiny."}}"#
        );
        assert_eq!(
            VllmError::content_type().body(Some(GenerationApi::Messages)),
            r#"{"error":{"message":"1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed","type":"Bad Request","param":null,"code":400}}"#
        );
        assert_eq!(
            VllmError::bad_value(
                "max_tokens must be at least 1, got 0.",
                Some(("max_tokens", 0))
            )
            .body(None),
            r#"{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)","type":"BadRequestError","param":"max_tokens","code":400}}"#
        );
    }
}
