//! What the clients of the last minute got.

use serde::{Deserialize, Serialize};

/// Counts of the inference requests that ended in the last minute, by what their clients got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerCounts {
    /// Number of requests with a class other than `cancelled`.
    pub total: u64,
    /// Whole answers that are not empty, and in time for all objectives.
    pub good: u64,
    /// The backend failed, or the gateway shut down.
    pub failed: u64,
    /// Complete responses with neither text nor a tool call.
    pub empty: u64,
    /// Complete responses whose text is replacement or control characters.
    pub damaged: u64,
    /// Answers that ended for lack of tokens before the limit that the client asked for.
    pub truncated: u64,
    /// The client gave up after a wait of a second or more.
    pub client_timeout: u64,
    /// 429 or 503.
    pub refused: u64,
    /// Another status of 4xx.
    pub rejected: u64,
    /// Good answers that missed an objective.
    pub late: u64,
    /// Requests that clients ended without a wait. They are neither good nor bad.
    pub cancelled: u64,
}

impl AnswerCounts {
    /// The share of good answers, from 0 to 1. `None`: there were no answers.
    pub fn good_share(&self) -> Option<f64> {
        (self.total > 0).then(|| self.good as f64 / self.total as f64)
    }

    /// The classes of bad answers that clients got, each with its number, the most frequent first.
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

    /// Adds other counts to these.
    pub fn merge(&mut self, other: &Self) {
        self.total += other.total;
        self.good += other.good;
        self.failed += other.failed;
        self.empty += other.empty;
        self.damaged += other.damaged;
        self.truncated += other.truncated;
        self.client_timeout += other.client_timeout;
        self.refused += other.refused;
        self.rejected += other.rejected;
        self.late += other.late;
        self.cancelled += other.cancelled;
    }
}
