//! The texts that redactors receive and return.

use serde::{Deserialize, Serialize};

/// The JSON object that redactors receive and return.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PayloadTexts {
    pub(super) prompt: String,
    pub(super) answer: String,
}

impl PayloadTexts {
    /// The JSON object and a newline.
    pub(super) fn to_json_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}
