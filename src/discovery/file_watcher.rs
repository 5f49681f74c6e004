//! Watches a file for changes by polling its content.
//!
//! Polling the content detects files that are written in place, files that are replaced, and the
//! nested symbolic links of Kubernetes volumes. It needs no kernel notifications. A half-written
//! file is not reported: two reads `SETTLE_TIME` apart must return the same content.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokenweir_core::clock;
use xxhash_rust::xxh3::xxh3_64;

/// A watched file.
#[derive(Debug)]
pub struct FileWatcher {
    path: PathBuf,
    content_hash: Option<u64>,
    /// The next poll waits for one interval first.
    is_retry_delayed: bool,
    is_unreadable: bool,
}

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which new content must be unchanged before it is reported.
const SETTLE_TIME: Duration = Duration::from_millis(100);

impl FileWatcher {
    /// Watches a file. Its current content is reported as the first change.
    pub fn new(path: PathBuf) -> Self {
        Self { path, content_hash: None, is_retry_delayed: false, is_unreadable: false }
    }

    /// Watches the file at `path`, if there is a path. Its current content is not reported.
    pub async fn for_path(path: Option<&Path>) -> Option<Self> {
        let mut watcher = Self::new(path?.to_owned());
        watcher.skip_current().await;
        Some(watcher)
    }

    /// Marks the current content as known: it is not reported as a change.
    pub async fn skip_current(&mut self) {
        self.content_hash = hash_content(&self.path).await.ok();
    }

    /// Reports the current content again after `POLL_INTERVAL`, because it could not be used.
    pub fn retry_later(&mut self) {
        self.content_hash = None;
        self.is_retry_delayed = true;
    }

    /// Waits until the content has changed and has been stable for `SETTLE_TIME`. A file that is
    /// missing or unreadable is polled until it can be read.
    pub async fn changed(&mut self) {
        if self.is_retry_delayed {
            sleep(POLL_INTERVAL).await;
            self.is_retry_delayed = false;
        }
        loop {
            let first = hash_content(&self.path).await;
            self.log_readability(first.as_ref().err());
            if let Ok(first) = first
                && self.content_hash != Some(first)
            {
                sleep(SETTLE_TIME).await;
                if hash_content(&self.path).await.is_ok_and(|second| second == first) {
                    self.content_hash = Some(first);
                    return;
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Logs each change between readable and unreadable once.
    fn log_readability(&mut self, error: Option<&io::Error>) {
        let was_unreadable = std::mem::replace(&mut self.is_unreadable, error.is_some());
        let file = self.path.display();
        match error {
            Some(error) if !was_unreadable => {
                tracing::warn!(
                    %file,
                    %error,
                    "cannot read a watched file: keeping its last content"
                );
            }
            None if was_unreadable => tracing::info!(%file, "a watched file is readable again"),
            _ => {}
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

async fn hash_content(path: &Path) -> io::Result<u64> {
    Ok(xxh3_64(&tokio::fs::read(path).await?))
}

async fn sleep(duration: Duration) {
    tokio::time::sleep_until((clock::now() + duration).into()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn create_temp_folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tokenweir-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[tokio::test(start_paused = true)]
    async fn change_is_reported_when_the_content_is_stable() {
        let folder = create_temp_folder("file");
        let mut file = FileWatcher::new(folder.join("a"));
        let limit = Duration::from_secs(10);
        assert!(tokio::time::timeout(limit, file.changed()).await.is_err(), "the file is missing");
        fs::write(file.path(), "one").unwrap();
        file.changed().await;
        fs::write(file.path(), "one").unwrap();
        assert!(tokio::time::timeout(limit, file.changed()).await.is_err(), "same content");
        fs::remove_file(file.path()).unwrap();
        assert!(tokio::time::timeout(limit, file.changed()).await.is_err(), "the file was removed");
        fs::write(file.path(), "two").unwrap();
        file.changed().await;
        fs::write(file.path(), "three").unwrap();
        file.skip_current().await;
        assert!(tokio::time::timeout(limit, file.changed()).await.is_err(), "already known");
        let waited = tokio::time::timeout(POLL_INTERVAL / 2, file.changed()).await;
        assert!(waited.is_err());
        file.retry_later();
        let waited = tokio::time::timeout(POLL_INTERVAL / 2, file.changed()).await;
        assert!(waited.is_err(), "a retry waits for one interval");
        file.changed().await;
        fs::remove_dir_all(folder).unwrap();
    }

    /// The kubelet writes a new folder and replaces the symbolic link to it.
    #[tokio::test(start_paused = true)]
    async fn swapped_symlink_is_reported_as_a_change() {
        let folder = create_temp_folder("links");
        for version in ["1", "2"] {
            fs::create_dir_all(folder.join(version)).unwrap();
            fs::write(folder.join(version).join("a.yaml"), version).unwrap();
        }
        symlink("1", folder.join("..data")).unwrap();
        symlink("..data/a.yaml", folder.join("a.yaml")).unwrap();
        let mut file = FileWatcher::new(folder.join("a.yaml"));
        file.changed().await;
        symlink("2", folder.join("..next")).unwrap();
        fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
        file.changed().await;
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "2");
        fs::remove_dir_all(folder).unwrap();
    }
}
