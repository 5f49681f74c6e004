//! The text that the client has received, and the part of it that the current backend has repeated.

/// Number of bytes at the end of the text that are never dropped.
const END_BYTES: usize = 16;

/// The output text of all streams of one response together.
#[derive(Debug, Default)]
pub(super) struct ShownText {
    /// Number of bytes of the text that the client has received.
    pub shown: usize,
    /// Number of bytes of the text up to the end of the output of the current backend. Less than
    /// `shown` while this backend repeats text that the client has.
    pub generated: usize,
    /// The end of the text that the client has received. The splicer compares repeated text with it, or another
    /// backend continues after it.
    pub tail: String,
}

impl ShownText {
    /// Whether the current backend still repeats text that the client has.
    pub(super) const fn is_repeating(&self) -> bool {
        self.generated < self.shown
    }

    /// Adds text of the current backend. Returns how many of its bytes the client already has. `None`: the text
    /// differs from what the client has. `is_kept`: whether a continuation may need the text.
    pub(super) fn show(&mut self, text: &str, is_kept: bool) -> Option<usize> {
        let repeated = (self.shown - self.generated).min(text.len());
        if repeated > 0 {
            let start = self.tail.len().checked_sub(self.shown - self.generated)?;
            let expected = self.tail.as_bytes().get(start..start + repeated)?;
            if *expected != text.as_bytes()[..repeated] {
                return None;
            }
        }
        self.generated += text.len();
        if let Some(new) = text.get(repeated..).filter(|new| !new.is_empty()) {
            self.shown += new.len();
            if is_kept {
                self.tail.push_str(new);
            }
        }
        Some(repeated)
    }

    /// The last characters of the text: at most 16 bytes.
    pub(super) fn end(&self) -> &str {
        let start = self.tail.len().saturating_sub(END_BYTES);
        self.tail
            .get(self.tail.ceil_char_boundary(start)..)
            .unwrap_or_default()
    }

    /// Removes the text before this position from `tail`, but keeps at least the last 16 bytes.
    pub(super) fn forget_before(&mut self, position: usize) {
        let kept = (self.shown - position).max(END_BYTES);
        let forgotten = self.tail.len().saturating_sub(kept);
        if forgotten > 0 {
            self.tail.drain(..self.tail.floor_char_boundary(forgotten));
        }
    }
}
