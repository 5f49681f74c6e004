//! Client of a redactor server. The client posts the texts as a JSON object, and the server
//! responds with the redacted object and status 200.

use super::error::PayloadSinkStartError;
use super::texts::PayloadTexts;
use crate::telemetry::clients::json_client::JsonHttpClient;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// A redactor that sends texts to a redactor server.
pub(super) struct HttpRedactor {
    client: JsonHttpClient,
    runtime: Runtime,
}

/// Maximum length of a response, in bytes. A longer response is an error.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

impl HttpRedactor {
    /// Creates a client of the redactor server at this URL.
    pub(super) fn new(url: &str) -> Result<Self, PayloadSinkStartError> {
        let client = JsonHttpClient::new(url, MAX_RESPONSE_BYTES)
            .ok_or_else(|| PayloadSinkStartError::InvalidUrl(url.to_owned()))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { client, runtime })
    }

    /// Redacts the texts with the server. `None`: the request failed, the response is not valid or
    /// the server took longer than `timeout`.
    pub(super) fn redact(&self, texts: &PayloadTexts, timeout: Duration) -> Option<PayloadTexts> {
        let body = serde_json::to_vec(texts).ok()?;
        let response = async {
            tokio::time::timeout(timeout, self.client.post_json(body)).await.ok().flatten()
        };
        self.runtime.block_on(response)
    }
}
