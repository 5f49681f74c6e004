//! One request as a turn of a session.

use std::sync::Arc;
use tokenweir_routing::PromptFingerprint;

/// One request that generates text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn<'a> {
    pub(crate) prompt: &'a Arc<PromptFingerprint>,
    /// The hash of the name of its session. `None`: it names none.
    pub(crate) session: Option<u64>,
    /// Expected number of output tokens.
    pub(crate) output: u64,
}

/// Whether a turn may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnKind {
    /// The capacity is not known.
    Unlimited,
    /// It continues a live session.
    OfLiveSession,
    /// It begins a session that fits.
    Fits,
    /// It begins a session that does not fit.
    Waits,
}
