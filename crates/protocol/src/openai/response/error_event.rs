//! Builds the error events that the gateway adds to streams.

use crate::openai::Api;
use bytes::Bytes;
use serde_json::{Value, json};

impl Api {
    /// An event with an error in the format of this API, which the SDKs of OpenAI and Anthropic
    /// raise as an exception. The stream ends after this event, without the API's terminal event.
    pub fn error_event(self, message: &str) -> Bytes {
        let error = json!({
            "message": message, "type": "BadGatewayError", "param": null, "code": 502,
        });
        self.event_with_error(error)
    }

    /// An event with the error of a backend response that is not a stream, for a client that already receives a
    /// stream. `body` is the body of the backend response.
    pub fn error_event_of_response(self, status: u16, body: &[u8]) -> Bytes {
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = if document["error"].is_object() {
            document["error"].clone()
        } else {
            let text = String::from_utf8_lossy(body);
            let message = format!("status {status}: {}", text.trim());
            json!({ "message": message, "type": "BadGatewayError", "param": null, "code": status })
        };
        self.event_with_error(error)
    }

    /// The event with an error in the format of OpenAI or Anthropic.
    fn event_with_error(self, error: Value) -> Bytes {
        let (event_type, data) = match self {
            Self::Messages => {
                let kind = match error["type"].as_str() {
                    // Error types of Anthropic's API end with `_error`.
                    Some(kind) if kind.ends_with("_error") => kind,
                    _ => "api_error",
                };
                let error = json!({ "type": kind, "message": error["message"] });
                ("event: error\n", json!({ "type": "error", "error": error }))
            }
            Self::Responses => {
                let code = match &error["code"] {
                    Value::Number(code) => code.to_string().into(),
                    code => code.clone(),
                };
                let mut data =
                    json!({ "type": "error", "message": error["message"], "code": code });
                data["error"] = error;
                ("event: error\n", data)
            }
            _ => ("", json!({ "error": error })),
        };
        format!("{event_type}data: {data}\n\n").into()
    }
}
