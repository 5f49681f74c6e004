//! The consumers of request and response text.

/// The consumers that the text of a request is retained for. Each of them samples independently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PayloadConsumers {
    /// The payload log.
    pub log: bool,
    /// The quality monitors.
    pub quality: bool,
}

impl PayloadConsumers {
    /// Whether any consumer wants the text.
    pub const fn has_any(self) -> bool {
        self.log || self.quality
    }
}
