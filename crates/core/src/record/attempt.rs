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

/// Why no other replica was asked after one had failed a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotRetried {
    /// It would have been too late, or have fared the same.
    Rule,
    /// The request may have effects beyond its answer.
    Effects,
    /// Replicas may have died of it.
    Poison,
    /// Enough others had it.
    Attempts,
    /// Too many requests were sent again lately.
    Budget,
    /// There was no other.
    Nowhere,
}

impl NotRetried {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Rule, Self::Effects, Self::Poison, Self::Attempts, Self::Budget, Self::Nowhere];

    /// The name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Effects => "effects",
            Self::Poison => "poison",
            Self::Attempts => "attempts",
            Self::Budget => "budget",
            Self::Nowhere => "nowhere",
        }
    }
}
