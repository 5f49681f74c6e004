//! The buffer for a token (a name or a scalar) that is split between pieces of a document.

/// A split name or scalar: its first bytes and its total length.
#[derive(Debug, Clone)]
pub(super) struct TokenBuffer {
    bytes: [u8; MAX_TOKEN_BYTES],
    /// Length of the token in bytes, which can exceed the buffer. 0: the current token is not split.
    len: usize,
    /// A buffer for tokens of more than [`MAX_TOKEN_BYTES`] bytes. `None`: no larger capacity was set.
    long_buffer: Option<LongTokenBuffer>,
}

#[derive(Debug, Clone)]
struct LongTokenBuffer {
    bytes: Vec<u8>,
    /// Number of bytes that `bytes` may contain.
    capacity: usize,
}

/// Number of bytes of a split name or scalar that are stored, unless a larger capacity is set. The scanner
/// reports longer names and scalars truncated.
pub(super) const MAX_TOKEN_BYTES: usize = 256;

impl Default for TokenBuffer {
    fn default() -> Self {
        Self {
            bytes: [0; MAX_TOKEN_BYTES],
            len: 0,
            long_buffer: None,
        }
    }
}

impl TokenBuffer {
    /// Sets the number of bytes of a split token that are stored. A capacity of at most [`MAX_TOKEN_BYTES`] has
    /// no effect, because so many bytes are always stored.
    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.long_buffer = (capacity > MAX_TOKEN_BYTES).then(|| LongTokenBuffer {
            bytes: Vec::new(),
            capacity,
        });
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        if let Some(long_buffer) = &mut self.long_buffer {
            long_buffer.bytes.clear();
        }
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        let start = self.len.min(MAX_TOKEN_BYTES);
        let count = bytes.len().min(MAX_TOKEN_BYTES - start);
        self.bytes[start..start + count].copy_from_slice(&bytes[..count]);
        self.len += bytes.len();
        if let Some(long_buffer) = &mut self.long_buffer {
            let count = bytes
                .len()
                .min(long_buffer.capacity - long_buffer.bytes.len());
            long_buffer.bytes.extend_from_slice(&bytes[..count]);
        }
    }

    /// The first bytes of the split token.
    pub(super) fn stored(&self) -> &[u8] {
        &self.bytes[..self.len.min(MAX_TOKEN_BYTES)]
    }

    /// Returns the stored bytes of a token that ends with `last_bytes`, and its total length. A token that was
    /// not split is returned without a copy.
    pub(super) fn finish<'a>(&'a mut self, last_bytes: &'a [u8]) -> (&'a [u8], usize) {
        if self.len == 0 {
            return (last_bytes, last_bytes.len());
        }
        self.extend(last_bytes);
        match &self.long_buffer {
            Some(long_buffer) => (&long_buffer.bytes, self.len),
            None => (&self.bytes[..self.len.min(MAX_TOKEN_BYTES)], self.len),
        }
    }
}
