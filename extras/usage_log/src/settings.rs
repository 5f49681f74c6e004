//! The settings of the usage log.

use std::path::PathBuf;
use tokenweir_net::client::receiver::Receiver;

/// The settings of the usage log.
#[derive(Debug, Clone)]
pub struct UsageLogSettings {
    /// The file.
    pub file: PathBuf,
    /// Greatest length of the file and of its rotated predecessor together, in bytes.
    pub max_bytes: u64,
    /// The name of this gateway in the events.
    pub gateway: String,
    /// The receiver of the events. `None`: the events are in the file only.
    pub push: Option<Receiver>,
}
