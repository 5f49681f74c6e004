//! The result that the client of a request got.

use tokenweir_protocol::named_enum;

named_enum! {
    /// The result that the client of an inference request got.
    #[derive(Hash)]
    pub enum Answer {
        /// A whole answer that is not empty, and in time for all objectives.
        Good = "good",
        /// An error, or only a part of an answer or nothing: the backend failed, or the gateway shut down.
        Failed = "failed",
        /// A complete response with neither text nor a tool call outside of reasoning.
        Empty = "empty",
        /// A complete response whose text is replacement or control characters.
        Damaged = "damaged",
        /// An answer that ended for lack of tokens below the limit that the client asked for.
        Truncated = "truncated",
        /// The client stopped waiting after a second or more without output.
        ClientTimeout = "client_timeout",
        /// A status of 429 or 503, because of lacking capacity or a limit.
        Refused = "refused",
        /// Another status of 4xx.
        Rejected = "rejected",
        /// A good answer that missed an objective.
        Late = "late",
        /// The client ended the request itself, without a wait or because it got the answer to an equal request
        /// that it had sent meanwhile.
        Cancelled = "cancelled",
    }
}
