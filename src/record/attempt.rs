//! What came of sending a request to a replica.

use super::BackendId;
use std::sync::Arc;
use std::time::Instant;

/// The request was sent to a replica once.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The replica.
    pub backend: BackendId,
    /// Its host and port.
    pub address: (Arc<str>, u16),
    /// The kind of its server, as GenAI conventions name it.
    pub provider: &'static str,
    /// Our span for it: the parent of the engine's own.
    pub span: u64,
    /// When it was sent.
    pub started: Instant,
    /// When it failed, or the answer ended.
    pub ended: Option<Instant>,
    /// The status, if there was one.
    pub status: Option<u16>,
    /// Why there was none, from a closed set.
    pub failure: Option<&'static str>,
}
