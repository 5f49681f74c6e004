//! One request as a turn of a session.

use crate::PromptFingerprint;
use std::sync::Arc;

/// One request that generates text.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// Its prompt.
    pub prompt: &'a Arc<PromptFingerprint>,
    /// The hash of the name of its session. `None`: it names none.
    pub session: Option<u64>,
    /// Expected number of output tokens.
    pub output: u64,
}

/// The tokens of a turn that has ended, as its engine reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnTokens {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Prompt tokens that were in the KV cache. `None`: not reported.
    pub cached: Option<u64>,
    /// Tokens of the response.
    pub output: u64,
    /// Whether the turn missed an objective. `None`: none applies to it.
    pub has_missed: Option<bool>,
}

/// Whether a turn may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnKind {
    /// The capacity is not known.
    Unlimited,
    /// It continues a live session.
    OfLiveSession,
    /// It begins a session that fits.
    Fits,
    /// It begins a session that does not fit.
    Waits,
}
