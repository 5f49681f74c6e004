//! The ids of the spans of one request.

/// The ids of the request's own spans. Attempts have their own ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanIds {
    /// The server span, which covers the request.
    pub server: u64,
    /// The inference span: the generation of one response, over all attempts.
    pub inference: u64,
}
