//! The requests of one model or of one tenant.

document! {
    /// One model or one tenant, with its requests that ended in the last minute and its open streams.
    pub struct GroupSummary {
        /// Name of the model or of the tenant, as in the metric labels.
        name: String,
        /// Number of requests that ended in the last minute.
        requests: u64,
        /// Number of these requests that failed.
        failed: u64,
        /// Number of responses with a status of 4xx that are not refusals.
        client_errors: u64,
        /// Number of these requests that were refused.
        refused: u64,
        /// Number of requests whose client disconnected.
        client_disconnects: u64,
        /// Prompt tokens of the requests that reached a backend.
        prompt_tokens: u64,
        /// Output tokens of the ended requests.
        output_tokens: u64,
        /// Mean TTFT as the clients observe it, in seconds. `None`: no stream had output.
        ttft_seconds: Option<f64>,
        /// Number of open streams.
        open_streams: u64,
    }
}
