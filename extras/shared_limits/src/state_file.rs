//! The file in which this gateway stores its usage of daily and monthly quotas. The gateway also starts if the
//! file is damaged or missing.

use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tokenweir_net::file_watcher::open_regular;
use tokenweir_request::access::SavedQuota;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedUsage {
    /// The id under which the server of the exchange knows this gateway.
    pub(crate) gateway: String,
    /// The last known number of gateways, including this one.
    pub(crate) gateways: u64,
    pub(crate) quotas: Vec<SavedQuota>,
}

/// Maximum length of the file, in bytes.
const MAX_BYTES: u64 = 64 << 20;

impl SavedUsage {
    /// Reads a file. `None`: the file does not exist.
    pub(crate) fn read(file: &Path) -> io::Result<Option<Self>> {
        let opened = match open_regular(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut content = Vec::new();
        opened.take(MAX_BYTES).read_to_end(&mut content)?;
        Ok(Some(serde_json::from_slice(&content)?))
    }

    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let content = serde_json::to_vec(self)?;
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = file.with_file_name(name);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut opened = options.open(&new)?;
        opened.write_all(&content)?;
        opened.sync_all()?;
        fs::rename(new, file)
    }
}
