//! What a capture keeps of a request beside the rest of its record: its prompt without the text.

/// A prompt as hashes, and the session that it belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// Length of the prompt in bytes, as it stands in the request.
    pub bytes: u64,
    /// A hash of each whole block and all before it. It must not leave the process as it is: the
    /// hash of a block is the seed of the next one's, so guesses could be tried.
    pub blocks: Box<[u64]>,
    /// Bytes in a block.
    pub block_bytes: u32,
    /// A hash of the session, if there is one. It must not leave the process either.
    pub session: Option<u64>,
}
