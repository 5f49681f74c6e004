//! Who reads the text of a request.

/// For whom the text of a request is kept, if it is. Each has a sample of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextFor {
    /// The content log.
    pub log: bool,
    /// Those who look at the quality of answers.
    pub quality: bool,
}

impl TextFor {
    /// Whether anybody wants it.
    pub const fn is_anybody(self) -> bool {
        self.log || self.quality
    }
}
