//! Loads the file of tenants and keys at the start, and reloads it when it changes.

use crate::config::{self, ConfigError};
use crate::proxy::access::AccessControl;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokenweir_core::access::KeyFile;
use tokio::time::MissedTickBehavior;

/// Interval between two polls of the file's metadata.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the keys file.
#[derive(Clone)]
pub(crate) struct KeysFileWatcher {
    file: PathBuf,
    tiers: config::TiersConfig,
    load: LoadKeysFn,
    /// The stamp of the file at the last load.
    loaded_stamp: Option<FileStamp>,
    /// The stamp of the file at the last poll.
    last_stamp: Option<FileStamp>,
    /// The last read error. Its cause may disappear without a change of the stamp, so the file is
    /// read again at each poll.
    read_error: Option<String>,
}

type LoadKeysFn = fn(&Path, &config::TiersConfig) -> Result<KeyFile, ConfigError>;

/// Metadata that identifies a version of a file. The modification time alone is not enough: two
/// writes may share one tick of the system clock, and a copy may preserve an old modification time.
/// The inode change time (ctime) cannot be preserved.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileStamp {
    modified: Option<SystemTime>,
    bytes: u64,
    #[cfg(unix)]
    inode: u64,
    #[cfg(unix)]
    changed: (i64, i64),
}

impl KeysFileWatcher {
    /// Loads the file for the first time. An error here prevents the start of the gateway, because
    /// it must not serve without its keys.
    pub(crate) fn open(
        file: PathBuf,
        tiers: config::TiersConfig,
    ) -> Result<(Self, KeyFile), ConfigError> {
        let load = config::load_keys;
        let mut watcher =
            Self { file, tiers, load, loaded_stamp: None, last_stamp: None, read_error: None };
        watcher.loaded_stamp = watcher.read_stamp();
        watcher.last_stamp = watcher.loaded_stamp.clone();
        let keys = load(&watcher.file, &watcher.tiers)?;
        Ok((watcher, keys))
    }

    /// Reloads the file whenever it changes, until the future is dropped. While the file is invalid
    /// or missing, the previous keys stay active.
    pub(crate) async fn watch(mut self, access: Arc<AccessControl>) {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.poll(&access);
        }
    }

    fn poll(&mut self, access: &AccessControl) {
        let stamp = self.read_stamp();
        // Waits until two polls see the same file: it may still be written.
        let is_stable = stamp == std::mem::replace(&mut self.last_stamp, stamp.clone());
        if is_stable && (stamp != self.loaded_stamp || self.read_error.is_some()) {
            self.loaded_stamp = stamp;
            self.reload(access);
        }
    }

    fn reload(&mut self, access: &AccessControl) {
        let file = self.file.display();
        match (self.load)(&self.file, &self.tiers) {
            Ok(key_file) => {
                self.read_error = None;
                access.replace_keys(Some(&key_file));
                let keys = access.keys().map_or(0, |keys| keys.len());
                tracing::info!(%file, tenants = key_file.tenants.len(), keys, "keys reloaded");
            }
            Err(error) => {
                let problem = error.to_string();
                let read_error = error.is_unreadable().then(|| problem.clone());
                let is_known = read_error.is_some() && read_error == self.read_error;
                self.read_error = read_error;
                if !is_known {
                    tracing::error!(%error, "keys file is invalid: the previous keys stay active");
                }
                access.set_reload_error(problem);
            }
        }
    }

    fn read_stamp(&self) -> Option<FileStamp> {
        fs::metadata(&self.file).ok().as_ref().map(FileStamp::from_metadata)
    }
}

impl FileStamp {
    fn from_metadata(file: &Metadata) -> Self {
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

    fn keys_file_text(name: &str) -> String {
        let hash = KeyDigest::from_key(name.as_bytes());
        format!("tenants: [{{ name: {name}, keys: [{{ name: k, hash: '{hash}' }}] }}]\n")
    }

    /// A keys file with tenant `old`, and the access control that it configures.
    fn open_keys_file(name: &str, load: LoadKeysFn) -> (KeysFileWatcher, AccessControl) {
        let name = format!("tokenweir-keys-{name}-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        fs::write(&file, keys_file_text("old")).unwrap();
        let (watcher, keys) = KeysFileWatcher::open(file, config::TiersConfig::default()).unwrap();
        let access = AccessControl::new(Some(&keys), Cors::default());
        (KeysFileWatcher { load, ..watcher }, access)
    }

    fn tenant_names(access: &AccessControl) -> Vec<String> {
        access.keys().unwrap().open().map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn an_unreadable_file_is_retried_at_each_poll_although_it_does_not_change() {
        static IS_READABLE: AtomicBool = AtomicBool::new(false);
        let load: LoadKeysFn = |file, tiers| {
            let is_readable = IS_READABLE.load(Ordering::SeqCst);
            // A directory opens, and gives an error when it is read.
            config::load_keys(if is_readable { file } else { Path::new("/") }, tiers)
        };
        let (mut watcher, access) = open_keys_file("unreadable", load);
        fs::write(&watcher.file, keys_file_text("new")).unwrap();
        for _ in 0..5 {
            watcher.poll(&access);
        }
        assert_eq!(tenant_names(&access), ["old"]);
        assert!(access.reload_error().unwrap().contains("this is a directory"));
        IS_READABLE.store(true, Ordering::SeqCst);
        watcher.poll(&access);
        assert_eq!(tenant_names(&access), ["new"]);
        assert_eq!(access.reload_error(), None);
        fs::remove_file(&watcher.file).unwrap();
        for _ in 0..3 {
            watcher.poll(&access);
        }
        assert!(access.reload_error().unwrap().contains("no such file"));
        assert_eq!(tenant_names(&access), ["new"]);
    }

    #[test]
    fn an_invalid_file_is_read_once_until_it_changes_and_its_error_stays_visible() {
        static READS: AtomicUsize = AtomicUsize::new(0);
        let load: LoadKeysFn = |file, tiers| {
            READS.fetch_add(1, Ordering::SeqCst);
            config::load_keys(file, tiers)
        };
        let (mut watcher, access) = open_keys_file("mistake", load);
        fs::write(&watcher.file, "tenants: [{ name: new }]\n").unwrap();
        for _ in 0..5 {
            watcher.poll(&access);
        }
        assert_eq!(READS.load(Ordering::SeqCst), 1);
        assert!(access.reload_error().is_some());
        fs::write(&watcher.file, keys_file_text("new")).unwrap();
        for _ in 0..5 {
            watcher.poll(&access);
        }
        assert_eq!((READS.load(Ordering::SeqCst), access.reload_error()), (2, None));
        assert_eq!(tenant_names(&access), ["new"]);
        fs::remove_file(&watcher.file).unwrap();
    }
}
