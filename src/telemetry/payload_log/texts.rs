//! The prompt and the response that redactor commands and servers receive and return.

use serde::{Deserialize, Serialize};

/// The JSON object that redactor commands and servers receive and return.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PayloadTexts {
    pub(super) prompt: String,
    /// The text of the response.
    pub(super) answer: String,
}

impl PayloadTexts {
    /// Serializes the object as JSON and appends a newline.
    pub(super) fn to_json_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}
