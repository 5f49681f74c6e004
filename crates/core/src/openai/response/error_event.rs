//! Builds the error event that the gateway appends to a stream that breaks off.

use crate::openai::Api;
use bytes::Bytes;
use serde_json::json;

impl Api {
    /// An event with an error in the format of this API, which the SDKs of OpenAI and Anthropic
    /// raise as an exception. The stream ends after it without the API's terminal event.
    pub fn error_event(self, message: &str) -> Bytes {
        let error = json!({
            "message": message, "type": "BadGatewayError", "param": null, "code": 502,
        });
        let (event_type, data) = match self {
            Self::Messages => {
                let error = json!({ "type": "api_error", "message": message });
                ("event: error\n", json!({ "type": "error", "error": error }))
            }
            Self::Responses => {
                let mut data = json!({ "type": "error", "error": error });
                data["message"] = message.into();
                data["code"] = "502".into();
                ("event: error\n", data)
            }
            _ => ("", json!({ "error": error })),
        };
        format!("{event_type}data: {data}\n\n").into()
    }
}
