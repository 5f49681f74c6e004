//! The buffer for a token that is split between pieces of a document.

/// A split name or scalar: its first bytes and its total length.
#[derive(Debug, Clone)]
pub(super) struct TokenBuffer {
    bytes: [u8; MAX_TOKEN_BYTES],
    len: usize,
    /// A larger buffer, if a larger capacity was set.
    long: Option<LongTokenBuffer>,
}

#[derive(Debug, Clone)]
struct LongTokenBuffer {
    bytes: Vec<u8>,
    capacity: usize,
}

/// Most bytes of a split name or scalar that are kept. Longer ones are reported truncated.
pub(super) const MAX_TOKEN_BYTES: usize = 256;

// === impl TokenBuffer ===

impl Default for TokenBuffer {
    fn default() -> Self {
        Self { bytes: [0; MAX_TOKEN_BYTES], len: 0, long: None }
    }
}

impl TokenBuffer {
    /// Keeps the first `capacity` bytes of a split token, if more than [`MAX_TOKEN_BYTES`].
    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.long =
            (capacity > MAX_TOKEN_BYTES).then(|| LongTokenBuffer { bytes: Vec::new(), capacity });
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        if let Some(long) = &mut self.long {
            long.bytes.clear();
        }
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        let start = self.len.min(MAX_TOKEN_BYTES);
        let count = bytes.len().min(MAX_TOKEN_BYTES - start);
        self.bytes[start..start + count].copy_from_slice(&bytes[..count]);
        self.len += bytes.len();
        if let Some(long) = &mut self.long {
            let count = bytes.len().min(long.capacity - long.bytes.len());
            long.bytes.extend_from_slice(&bytes[..count]);
        }
    }

    /// The token with its last bytes, and its total length. Not copied unless it was split.
    pub(super) fn finish<'a>(&'a mut self, last: &'a [u8]) -> (&'a [u8], usize) {
        if self.len == 0 {
            return (last, last.len());
        }
        self.extend(last);
        match &self.long {
            Some(long) => (&long.bytes, self.len),
            None => (&self.bytes[..self.len.min(MAX_TOKEN_BYTES)], self.len),
        }
    }
}
