//! The file of tenants and keys: read at the start, and again when it changes.

use crate::config::{self, ConfigError};
use crate::proxy::access::Access;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokenweir_core::access::Roster;
use tokio::time::MissedTickBehavior;

/// How often the file is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// A file that is watched.
#[derive(Clone)]
pub(crate) struct KeysFile {
    file: PathBuf,
    tiers: config::Tiers,
    load: Load,
    /// As it was when it was last read.
    read: Option<Stamp>,
    /// As it was at the last look.
    seen: Option<Stamp>,
    /// Why it could not be read the last time. The reason may pass without a change of the stamp, so
    /// the file is read again at each look.
    unreadable: Option<String>,
}

type Load = fn(&Path, &config::Tiers) -> Result<Roster, ConfigError>;

/// What changes with a file. Its time alone may stand still for two writes in one tick of the
/// system's clock, and a copy may bring an old time with it, but not an old time of change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    #[cfg(unix)]
    inode: u64,
    #[cfg(unix)]
    changed: (i64, i64),
}

impl KeysFile {
    /// Reads it for the first time. An error here is one of the start: without keys nobody must
    /// come in.
    pub(crate) fn open(file: PathBuf, tiers: config::Tiers) -> Result<(Self, Roster), ConfigError> {
        let load = config::load_keys;
        let mut keys = Self { file, tiers, load, read: None, seen: None, unreadable: None };
        keys.read = keys.stamp();
        keys.seen = keys.read.clone();
        let roster = load(&keys.file, &keys.tiers)?;
        Ok((keys, roster))
    }

    /// Puts what the file says in force when it has changed, for ever. While it is wrong or gone,
    /// what it said before stays in force.
    pub(crate) async fn watch(mut self, access: Arc<Access>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look(&access);
        }
    }

    fn look(&mut self, access: &Access) {
        let now = self.stamp();
        // A file that is still being written is left alone until it rests.
        let is_at_rest = now == std::mem::replace(&mut self.seen, now.clone());
        if is_at_rest && (now != self.read || self.unreadable.is_some()) {
            self.read = now;
            self.load(access);
        }
    }

    fn load(&mut self, access: &Access) {
        let file = self.file.display();
        match (self.load)(&self.file, &self.tiers) {
            Ok(roster) => {
                self.unreadable = None;
                access.replace(Some(&roster));
                let keys = access.keys().map_or(0, |keys| keys.len());
                tracing::info!(%file, tenants = roster.tenants.len(), keys, "keys reloaded");
            }
            Err(error) => {
                let problem = error.to_string();
                let unreadable = error.is_unreadable().then(|| problem.clone());
                let is_known = unreadable.is_some() && unreadable == self.unreadable;
                self.unreadable = unreadable;
                if !is_known {
                    tracing::error!(%error, "the file of keys is wrong; what it said before is in force");
                }
                access.complain(problem);
            }
        }
    }

    fn stamp(&self) -> Option<Stamp> {
        fs::metadata(&self.file).ok().as_ref().map(Stamp::of)
    }
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        Self {
            modified: file.modified().ok(),
            bytes: file.len(),
            #[cfg(unix)]
            inode: file.ino(),
            #[cfg(unix)]
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tokenweir_core::access::{Cors, KeyDigest};

    fn with_tenant(name: &str) -> String {
        let hash = KeyDigest::of(name.as_bytes());
        format!("tenants: [{{ name: {name}, keys: [{{ name: k, hash: '{hash}' }}] }}]\n")
    }

    /// A file of keys of tenant `old`, and who may come in by it.
    fn opened(name: &str, load: Load) -> (KeysFile, Access) {
        let name = format!("tokenweir-keys-{name}-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        fs::write(&file, with_tenant("old")).unwrap();
        let (keys, roster) = KeysFile::open(file, config::Tiers::default()).unwrap();
        let access = Access::new(Some(&roster), Cors::default());
        (KeysFile { load, ..keys }, access)
    }

    fn tenants(access: &Access) -> Vec<String> {
        access.keys().unwrap().open().map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn a_file_that_could_not_be_read_is_read_as_soon_as_it_can_be_although_it_does_not_change() {
        static IS_READABLE: AtomicBool = AtomicBool::new(false);
        let load: Load = |file, tiers| {
            let is_readable = IS_READABLE.load(Ordering::SeqCst);
            // A directory opens, and gives an error when it is read.
            config::load_keys(if is_readable { file } else { Path::new("/") }, tiers)
        };
        let (mut keys, access) = opened("unreadable", load);
        fs::write(&keys.file, with_tenant("new")).unwrap();
        for _ in 0..5 {
            keys.look(&access);
        }
        assert_eq!(tenants(&access), ["old"]);
        assert!(access.problem().unwrap().contains("this is a directory"));
        IS_READABLE.store(true, Ordering::SeqCst);
        keys.look(&access);
        assert_eq!(tenants(&access), ["new"]);
        assert_eq!(access.problem(), None);
        fs::remove_file(&keys.file).unwrap();
        for _ in 0..3 {
            keys.look(&access);
        }
        assert!(access.problem().unwrap().contains("no such file"));
        assert_eq!(tenants(&access), ["new"]);
    }

    #[test]
    fn a_file_with_a_mistake_is_read_once_until_it_changes_and_the_mistake_stays_visible() {
        static READS: AtomicUsize = AtomicUsize::new(0);
        let load: Load = |file, tiers| {
            READS.fetch_add(1, Ordering::SeqCst);
            config::load_keys(file, tiers)
        };
        let (mut keys, access) = opened("mistake", load);
        fs::write(&keys.file, "tenants: [{ name: new }]\n").unwrap();
        for _ in 0..5 {
            keys.look(&access);
        }
        assert_eq!(READS.load(Ordering::SeqCst), 1);
        assert!(access.problem().is_some());
        fs::write(&keys.file, with_tenant("new")).unwrap();
        for _ in 0..5 {
            keys.look(&access);
        }
        assert_eq!((READS.load(Ordering::SeqCst), access.problem()), (2, None));
        assert_eq!(tenants(&access), ["new"]);
        fs::remove_file(&keys.file).unwrap();
    }
}
