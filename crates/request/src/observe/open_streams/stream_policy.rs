//! Policies of response streams: timeouts, keep-alive comments and the handling of truncation.

use std::time::{Duration, Instant};
use tokenweir_protocol::settings;

/// The comments and error events that the gateway adds to streams. By default it adds nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamRules {
    /// How the client learns that its stream was truncated.
    pub on_truncation: OnTruncation,
    /// Time without bytes for the client after which the gateway sends it an SSE comment. `None`: no
    /// comments.
    pub keep_alive: Option<Duration>,
}

settings! {
    /// How a client learns that its stream was truncated.
    #[derive(Default)]
    pub enum OnTruncation {
        /// The connection is closed without the end of the body.
        #[default]
        Cut,
        /// An error event precedes the close, if the stream is between two events.
        ErrorEvent,
    }
}

/// Timeouts, comments and truncation handling of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamPolicy {
    /// Deadline of the first output. `None`: no deadline.
    pub first_output_by: Option<Instant>,
    /// Deadline of the end of the stream. `None`: no deadline.
    pub ends_by: Option<Instant>,
    /// Maximum silence between two outputs. `None`: [`StallLimits::abort_after`] applies.
    ///
    /// [`StallLimits::abort_after`]: super::StallLimits::abort_after
    pub idle: Option<Duration>,
    /// Keep-alive comments, and the handling of a stream that ends early.
    pub rules: StreamRules,
}
