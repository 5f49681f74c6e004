//! The requests of one model or of one tenant.

use serde::{Deserialize, Serialize};

/// One model or one tenant, with its requests that ended in the last minute and its open streams.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupSummary {
    /// Name of the model or of the tenant, as in the metric labels.
    pub name: String,
    /// Number of requests that ended in the last minute.
    pub requests: u64,
    /// Number of these requests that failed.
    pub failed: u64,
    /// Number of responses with a status of 4xx that are not refusals.
    pub client_errors: u64,
    /// Number of these requests that were refused.
    pub refused: u64,
    /// Number of requests whose client disconnected.
    pub client_disconnects: u64,
    /// Prompt tokens of the requests that reached a backend.
    pub prompt_tokens: u64,
    /// Output tokens of the ended requests.
    pub output_tokens: u64,
    /// Mean TTFT as the clients observe it, in seconds. `None`: no stream had output.
    pub ttft_seconds: Option<f64>,
    /// Number of open streams.
    pub open_streams: u64,
}
