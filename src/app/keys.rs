//! The file of tenants and keys: read at the start, and again when it changes.

use crate::access::Roster;
use crate::config::{self, ConfigError};
use crate::proxy::access::Access;
use std::fs::{self, Metadata};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::MissedTickBehavior;

/// How often the file is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// A file that is watched.
pub(super) struct KeysFile {
    file: PathBuf,
    tiers: config::Tiers,
    /// As it was when it was last read.
    read: Option<Stamp>,
}

/// What changes with a file. Its time alone may stand still for two writes in one tick of the
/// system's clock, and a copy may bring an old time with it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    #[cfg(unix)]
    inode: u64,
}

impl KeysFile {
    /// Reads it for the first time. An error here is one of the start: without keys nobody must
    /// come in.
    pub(super) fn open(file: PathBuf, tiers: config::Tiers) -> Result<(Self, Roster), ConfigError> {
        let mut keys = Self { file, tiers, read: None };
        keys.read = keys.stamp();
        let roster = Roster::load(&keys.file, &keys.tiers)?;
        Ok((keys, roster))
    }

    /// Puts what the file says in force when it has changed, for ever. While it is wrong or gone,
    /// what it said before stays in force.
    pub(super) async fn watch(mut self, access: Arc<Access>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = self.read.clone();
        loop {
            ticks.tick().await;
            let now = self.stamp();
            // A file that is still being written is left alone until it rests.
            let is_at_rest = now == std::mem::replace(&mut last, now.clone());
            if is_at_rest && now != self.read {
                self.read = now;
                self.load(&access);
            }
        }
    }

    fn load(&self, access: &Access) {
        let file = self.file.display();
        match Roster::load(&self.file, &self.tiers) {
            Ok(roster) => {
                access.replace(Some(&roster));
                let keys = access.keys().map_or(0, |keys| keys.len());
                tracing::info!(%file, tenants = roster.tenants.len(), keys, "keys reloaded");
            }
            Err(error) => {
                access.complain(error.to_string());
                tracing::error!(%error, "the file of keys is wrong; what it said before is in force");
            }
        }
    }

    fn stamp(&self) -> Option<Stamp> {
        fs::metadata(&self.file).ok().as_ref().map(Stamp::of)
    }
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self {
            modified: file.modified().ok(),
            bytes: file.len(),
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(file),
        }
    }
}
