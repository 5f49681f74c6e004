//! A redactor server: the texts are posted as a JSON object, and the redacted object comes back
//! with status 200.

use super::error::PayloadSinkStartError;
use super::texts::PayloadTexts;
use crate::telemetry::clients::json_client::JsonHttpClient;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// A client of the redactor server.
pub(super) struct HttpRedactor {
    client: JsonHttpClient,
    runtime: Runtime,
}

/// Longest response, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

impl HttpRedactor {
    /// A redactor server at this URL.
    pub(super) fn new(url: &str) -> Result<Self, PayloadSinkStartError> {
        let client = JsonHttpClient::new(url, MAX_RESPONSE_BYTES)
            .ok_or_else(|| PayloadSinkStartError::InvalidUrl(url.to_owned()))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { client, runtime })
    }

    /// The redacted texts. `None`: the request failed or took longer than `timeout`.
    pub(super) fn redact(&self, texts: &PayloadTexts, timeout: Duration) -> Option<PayloadTexts> {
        let body = serde_json::to_vec(texts).ok()?;
        let response = async {
            tokio::time::timeout(timeout, self.client.post_json(body)).await.ok().flatten()
        };
        self.runtime.block_on(response)
    }
}
