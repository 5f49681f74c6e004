//! Requests that vLLM refuses, and the four shapes in which it says so.

use super::{Api, quoted};

/// A refusal: its status and what the body says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    kind: &'static str,
    message: String,
    param: Option<String>,
}

const VALIDATION: &str = "Bad Request";

impl Refusal {
    /// 404: a model that is not served here.
    pub fn unknown_model(model: &str, served: &[String]) -> Self {
        let aliases = served.join(", ");
        let message = format!("The model `{model}` does not exist. Valid aliases: {aliases}.");
        Self { status: 404, kind: "NotFoundError", message, param: Some("model".to_owned()) }
    }

    /// 400: a value that the handler does not accept.
    pub fn bad_value(message: &str, param: Option<(&str, i64)>) -> Self {
        let message = match param {
            Some((name, value)) => format!("{message} (parameter={name}, value={value})"),
            None => message.to_owned(),
        };
        let param = param.map(|(name, _)| name.to_owned());
        Self { status: 400, kind: "BadRequestError", message, param }
    }

    /// 400: stream options without a stream.
    pub fn stream_options() -> Self {
        let message = "Stream options can only be defined when `stream=True`.";
        let message = format!("{message} (parameter=stream_options)");
        let param = Some("stream_options".to_owned());
        Self { status: 400, kind: "BadRequestError", message, param }
    }

    /// 400: the body is not announced as JSON.
    pub fn content_type() -> Self {
        let what = "Unsupported Media Type: Only 'application/json' is allowed";
        Self::validation(what, None)
    }

    /// 400: nothing was sent.
    pub fn empty_body() -> Self {
        let what = "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}";
        Self::validation(what, Some("body".to_owned()))
    }

    /// 400: not JSON, or a member of the wrong type.
    pub fn unreadable(error: &serde_json::Error) -> Self {
        let (kind, loc, text) = match error.classify() {
            serde_json::error::Category::Data => {
                ("value_error", "body".to_owned(), &*error.to_string())
            }
            _ => ("json_invalid", format!("body.{}", error.column()), "JSON decode error"),
        };
        let text = text.replace('\'', "\"");
        let what = format!("{{'type': '{kind}', 'loc': '{loc}', 'msg': '{text}'}}");
        Self::validation(&what, Some(loc))
    }

    /// 400: a member that must be there.
    pub fn missing(field: &str) -> Self {
        let loc = format!("body.{field}");
        let what = format!("{{'type': 'missing', 'loc': '{loc}', 'msg': 'Field required'}}");
        Self::validation(&what, Some(loc))
    }

    fn validation(what: &str, param: Option<String>) -> Self {
        let message = format!("1 validation error:\n  {what}");
        Self { status: 400, kind: VALIDATION, message, param }
    }

    /// The body. Messages has a shape of its own, but not for what fails validation.
    pub fn body(&self, api: Option<Api>) -> String {
        let (kind, message) = (quoted(self.kind), quoted(&self.message));
        if api == Some(Api::Messages) && self.kind != VALIDATION {
            return format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#);
        }
        let param = self.param.as_deref().map_or_else(|| "null".to_owned(), quoted);
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
    fn refusals_read_as_recorded() {
        let model = Refusal::unknown_model("nope", &["tiny".to_owned()]);
        assert_eq!(
            model.body(Some(Api::Chat)),
            r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.","type":"NotFoundError","param":"model","code":404}}"#
        );
        assert_eq!(
            model.body(Some(Api::Messages)),
            r#"{"type":"error","error":{"type":"NotFoundError","message":"The model `nope` does not exist. Valid aliases: tiny."}}"#
        );
        assert_eq!(
            Refusal::content_type().body(Some(Api::Messages)),
            r#"{"error":{"message":"1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed","type":"Bad Request","param":null,"code":400}}"#
        );
        assert_eq!(
            Refusal::bad_value("max_tokens must be at least 1, got 0.", Some(("max_tokens", 0)))
                .body(None),
            r#"{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)","type":"BadRequestError","param":"max_tokens","code":400}}"#
        );
    }
}
