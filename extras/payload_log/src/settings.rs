//! Configuration of the payload log.

use std::path::PathBuf;
use tokenweir_protocol::{settings, units};
use tokenweir_redaction::{REDACTION_MARGIN_BYTES, RedactionKind, RedactionSettings};

settings! {
    /// The log of prompts and responses: its file, its sample and its redaction.
    pub struct PayloadLogSettings {
        /// File for prompts and responses. `None`: no text is logged.
        pub file: Option<PathBuf>,
        /// Share of requests that are logged: more than 0, at most 1.
        pub sample: f64,
        /// Most bytes of each prompt and each response that are logged. At most 1MiB.
        #[serde(with = "units::Size")]
        pub max_bytes: usize,
        /// Kinds of private data that the built-in patterns redact.
        pub redact: Vec<RedactionKind>,
    }
}

impl PayloadLogSettings {
    /// Returns the number of bytes of each prompt and each response that are retained until
    /// redaction: `max_bytes` and a margin.
    pub fn excerpt_bytes(&self) -> usize {
        self.max_bytes + REDACTION_MARGIN_BYTES
    }

    /// The file and the share of requests that it gets, as text. `None`: the log is disabled.
    pub fn target(&self) -> Option<String> {
        let file = self.file.as_ref()?.display();
        Some(format!("{} % of requests to {file}", self.sample * 1e2))
    }

    /// Returns how prompts and responses are redacted. Other options that write them use the same settings,
    /// even if the payload log is disabled.
    pub fn redaction(&self) -> RedactionSettings {
        RedactionSettings {
            max_bytes: self.max_bytes,
            kinds: self.redact.clone(),
        }
    }
}

impl Default for PayloadLogSettings {
    /// The default: the log is disabled. If only a file is configured, the log has 1 % of the requests
    /// and 4 KiB of each text, and all kinds of private data are redacted.
    fn default() -> Self {
        Self {
            file: None,
            sample: 0.01,
            max_bytes: 4 << 10,
            redact: RedactionKind::ALL.to_vec(),
        }
    }
}
