//! What is configured of the content log.

use super::redact::Kind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tokenweir_core::units;

/// Where prompts and answers are written, whose, and what is taken out of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The file that gets prompts and answers. `None`: nothing of them is kept anywhere.
    pub file: Option<PathBuf>,
    /// Share of requests that are written: more than 0, up to 1.
    pub sample: f64,
    /// The first bytes of a prompt, and of an answer, that are written. At most 1MiB.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::schema::Size")]
    pub max_bytes: usize,
    /// What is taken out first.
    pub redact: Vec<Kind>,
    /// A program that takes out more, with its arguments: it reads `{"prompt": …, "answer": …}` on a
    /// line and writes the same on a line. `None`: none.
    pub command: Option<Vec<String>>,
    /// A server that does so instead, by POST. `None`: none.
    pub url: Option<String>,
    /// Most bytes of the file and the one before it together.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::schema::Size")]
    pub max_file_bytes: usize,
}

/// Bytes that are looked at beyond those that are written: a secret that stands across the end is
/// recognised by what follows.
pub(super) const MARGIN: usize = 512;

impl Settings {
    /// Bytes of a text that are kept for it.
    pub fn room(&self) -> usize {
        self.max_bytes + MARGIN
    }
}

impl Default for Settings {
    /// Nowhere; else one request in a hundred, 4 KiB of each text, without anything that is known
    /// to be private.
    fn default() -> Self {
        Self {
            file: None,
            sample: 0.01,
            max_bytes: 4 << 10,
            redact: Kind::ALL.to_vec(),
            command: None,
            url: None,
            max_file_bytes: 1 << 30,
        }
    }
}
