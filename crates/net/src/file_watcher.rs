//! Detects changes of files: the configuration, lists of backends, API keys, certificates.
//!
//! [`FileWatcher`] polls the content. This detects files that are written in place, files that are
//! replaced, and the symbolic links that Kubernetes exchanges for volumes. It needs no kernel
//! notifications. `docs/decisions/0009-file-watching.md` states the reasons.
//!
//! The watcher reports that the files differ from their last report, or became unreadable. The
//! owner then reads the files. If it cannot use them, it keeps its last good value and logs the
//! error; the watcher does not report the same content again.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::clock;
use xxhash_rust::xxh3::Xxh3Default;

/// Files that are used together.
#[derive(Debug, Clone)]
pub struct FileWatcher {
    files: Arc<[PathBuf]>,
    /// The state of the files at the last report. `None`: nothing was reported.
    reported: Option<FileState>,
    /// The next wait begins with one interval.
    is_retry_delayed: bool,
}

/// The state of all files of a watcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    /// A hash of the contents.
    Content(u64),
    /// A file is missing, or cannot be read.
    Unreadable,
}

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a new state must be unchanged before it is reported: a file may be half-written.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Bytes of each file that are compared. No reader of watched files accepts a larger file.
const MAX_COMPARED_BYTES: u64 = (1 << 20) + 1;

impl FileWatcher {
    /// Watches files. Their current state is reported as the first change.
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { files: files.into_iter().collect(), reported: None, is_retry_delayed: false }
    }

    /// Marks the current state as reported. Blocks on file reads. Call it before the files are
    /// read, so that a later change is reported.
    pub fn skip_current(&mut self) {
        self.reported = Some(FileState::read(&self.files));
    }

    /// Reports the files once more after one interval, because their owner could not read them. No
    /// effect if they are unreadable: the watcher reports when that changes.
    pub fn retry_later(&mut self) {
        if self.reported != Some(FileState::Unreadable) {
            self.reported = None;
            self.is_retry_delayed = true;
        }
    }

    /// Whether the files have changed since the last report. Each change is reported once. Blocks
    /// on file reads, and does not wait until the files are complete.
    pub fn poll(&mut self) -> bool {
        let state = Some(FileState::read(&self.files));
        std::mem::replace(&mut self.reported, state) != state
    }

    /// Waits until the files have changed and have been the same for `SETTLE_TIME`. Polls every
    /// second. Can be dropped and called again.
    pub async fn changed(&mut self) {
        if self.is_retry_delayed {
            sleep(POLL_INTERVAL).await;
            self.is_retry_delayed = false;
        }
        loop {
            let state = self.read().await;
            if self.reported != Some(state) {
                sleep(SETTLE_TIME).await;
                if self.read().await == state {
                    self.reported = Some(state);
                    return;
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The paths of the files.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    async fn read(&self) -> FileState {
        let files = self.files.clone();
        let read = tokio::task::spawn_blocking(move || FileState::read(&files));
        read.await.unwrap_or(FileState::Unreadable)
    }
}

impl FileState {
    fn read(files: &[PathBuf]) -> Self {
        let mut hash = Xxh3Default::new();
        let read = files.iter().try_for_each(|file| hash_file(file, &mut hash));
        read.map_or(Self::Unreadable, |()| Self::Content(hash.digest()))
    }
}

/// Adds the content and the length of a file, so that two files do not equal one of both contents.
fn hash_file(file: &Path, hash: &mut Xxh3Default) -> io::Result<()> {
    let mut content = Vec::new();
    let length = File::open(file)?.take(MAX_COMPARED_BYTES).read_to_end(&mut content)?;
    hash.update(&content);
    hash.update(&length.to_le_bytes());
    Ok(())
}

async fn sleep(duration: Duration) {
    tokio::time::sleep_until((clock::now() + duration).into()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use tokio::time::timeout;

    fn create_temp_folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tokenweir-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    async fn is_changed_within(watcher: &mut FileWatcher, limit: Duration) -> bool {
        timeout(limit, watcher.changed()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn each_stable_change_is_reported_once() {
        let folder = create_temp_folder("file");
        let path = folder.join("a");
        let mut watcher = FileWatcher::new([path.clone()]);
        let limit = Duration::from_secs(10);
        watcher.changed().await;
        assert!(!is_changed_within(&mut watcher, limit).await, "missing, as reported");
        fs::write(&path, "one").unwrap();
        watcher.changed().await;
        fs::write(&path, "one").unwrap();
        assert!(!is_changed_within(&mut watcher, limit).await, "same content");
        fs::remove_file(&path).unwrap();
        watcher.changed().await;
        fs::write(&path, "one").unwrap();
        watcher.changed().await;
        fs::write(&path, "three").unwrap();
        watcher.skip_current();
        assert!(!is_changed_within(&mut watcher, limit).await, "already known");
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_waits_for_one_interval_and_an_unreadable_file_is_not_retried() {
        let folder = create_temp_folder("retry");
        let path = folder.join("a");
        fs::write(&path, "one").unwrap();
        let mut watcher = FileWatcher::new([path.clone()]);
        watcher.changed().await;
        watcher.retry_later();
        assert!(!is_changed_within(&mut watcher, POLL_INTERVAL / 2).await);
        watcher.changed().await;
        fs::remove_file(&path).unwrap();
        watcher.changed().await;
        watcher.retry_later();
        assert!(!is_changed_within(&mut watcher, POLL_INTERVAL * 10).await);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_change_of_any_file_of_a_group_is_reported() {
        let folder = create_temp_folder("group");
        let files = ["cert", "key"].map(|name| folder.join(name));
        let mut watcher = FileWatcher::new(files.clone());
        assert!(watcher.poll(), "both are missing");
        fs::write(&files[0], "ab").unwrap();
        assert!(!watcher.poll(), "one is missing");
        fs::write(&files[1], "c").unwrap();
        assert!(watcher.poll());
        fs::write(&files[0], "a").unwrap();
        fs::write(&files[1], "bc").unwrap();
        assert!(watcher.poll() && !watcher.poll());
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
        let mut watcher = FileWatcher::new([folder.join("a.yaml")]);
        watcher.changed().await;
        symlink("2", folder.join("..next")).unwrap();
        fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
        watcher.changed().await;
        assert_eq!(fs::read_to_string(&watcher.files()[0]).unwrap(), "2");
        fs::remove_dir_all(folder).unwrap();
    }
}
