//! What is kept of a token that a piece of the document cuts in two.

/// A name or scalar cut by the end of a piece: its first bytes and its whole length.
#[derive(Debug, Clone)]
pub(super) struct Carry {
    bytes: [u8; MAX_KEPT],
    len: usize,
    /// The same with more room, for whoever wants long ones.
    long: Option<Long>,
}

#[derive(Debug, Clone)]
struct Long {
    bytes: Vec<u8>,
    room: usize,
}

/// Longest name or scalar that survives being cut. Longer ones are reported truncated.
pub(super) const MAX_KEPT: usize = 256;

// === impl Carry ===

impl Default for Carry {
    fn default() -> Self {
        Self { bytes: [0; MAX_KEPT], len: 0, long: None }
    }
}

impl Carry {
    /// Keeps the first `room` bytes of a scalar, if that is more.
    pub(super) fn keep_long(&mut self, room: usize) {
        self.long = (room > MAX_KEPT).then(|| Long { bytes: Vec::new(), room });
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
        if let Some(long) = &mut self.long {
            long.bytes.clear();
        }
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        let kept = self.len.min(MAX_KEPT);
        let room = bytes.len().min(MAX_KEPT - kept);
        self.bytes[kept..kept + room].copy_from_slice(&bytes[..room]);
        self.len += bytes.len();
        if let Some(long) = &mut self.long {
            let room = bytes.len().min(long.room - long.bytes.len());
            long.bytes.extend_from_slice(&bytes[..room]);
        }
    }

    /// The whole token, given its last bytes: uncopied unless it was cut.
    pub(super) fn finish<'a>(&'a mut self, last: &'a [u8]) -> (&'a [u8], usize) {
        if self.len == 0 {
            return (last, last.len());
        }
        self.extend(last);
        match &self.long {
            Some(long) => (&long.bytes, self.len),
            None => (&self.bytes[..self.len.min(MAX_KEPT)], self.len),
        }
    }
}
