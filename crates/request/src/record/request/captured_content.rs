//! The content of a request that is retained: its prompt as hashes, and its text for consumers.

/// A prompt as block hashes, and the hash of the session that it belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturedPrompt {
    /// Length of the prompt in bytes, as it is encoded in the request.
    pub prompt_bytes: u64,
    /// One hash per complete block, over the block and everything before it. The hashes must not
    /// leave the process unchanged: the hash of a block seeds the hash of the next block, so a
    /// reader could verify guesses of the prompt.
    pub block_hashes: Box<[u64]>,
    /// Block length in bytes.
    pub block_bytes: u32,
    /// Hash of the session. `None`: the request has no session. This hash must not leave the
    /// process unchanged either.
    pub session_hash: Option<u64>,
}

/// The consumers that the text of a request is retained for. Each of them samples independently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PayloadConsumers {
    /// Whether the text is retained for the payload log.
    pub log: bool,
    /// Whether the text is retained for the quality monitors.
    pub quality: bool,
}

impl PayloadConsumers {
    /// Whether the text is retained for any consumer.
    pub const fn has_any(self) -> bool {
        self.log || self.quality
    }
}
