//! The answers that clients received in the last minute, by quality.

use derive_more::AddAssign;

document! {
    /// Counts of the inference requests that ended in the last minute, by the answers that their clients received.
    #[derive(Copy, Eq, AddAssign)]
    pub struct AnswerCounts {
        /// Number of requests with a class other than `cancelled`.
        total: u64,
        /// Whole answers that are not empty, and in time for all objectives.
        good: u64,
        /// Requests that failed because of a backend, or because the gateway shut down.
        failed: u64,
        /// Complete responses without text and without a tool call.
        empty: u64,
        /// Complete responses whose text consists of replacement characters (U+FFFD) or control characters.
        damaged: u64,
        /// Answers that ended for lack of tokens, before the limit that the client requested.
        truncated: u64,
        /// Requests whose client gave up after a wait of at least one second.
        client_timeout: u64,
        /// Requests that were refused with 429 or 503.
        refused: u64,
        /// Requests that were answered with another 4xx status.
        rejected: u64,
        /// Whole answers that missed an objective for latency.
        late: u64,
        /// Requests that their client ended without having waited. They count neither as good nor as bad.
        cancelled: u64,
    }
}

impl AnswerCounts {
    /// The share of good answers, from 0 to 1. `None`: `total` is 0.
    pub fn good_share(&self) -> Option<f64> {
        (self.total > 0).then(|| self.good as f64 / self.total as f64)
    }

    /// The classes of bad answers with their numbers, the most frequent class first.
    pub fn bad(&self) -> Vec<(&'static str, u64)> {
        let mut bad = vec![
            ("failed", self.failed),
            ("empty", self.empty),
            ("damaged", self.damaged),
            ("truncated", self.truncated),
            ("client timeout", self.client_timeout),
            ("refused", self.refused),
            ("rejected", self.rejected),
            ("late", self.late),
        ];
        bad.retain(|(_, count)| *count > 0);
        bad.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        bad
    }
}
