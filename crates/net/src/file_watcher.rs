//! Detects changes of files: the configuration, lists of backends, API keys and certificates.
//!
//! [`FileWatcher`] polls the content of the files. Polling detects files that are written in place,
//! files that are replaced, and the symbolic links that Kubernetes replaces in volumes. It needs no
//! kernel notifications. `docs/decisions/0009-file-watching.md` states the reasons.
//!
//! The watcher reports a change if the content of the files differs from that of the last report,
//! or if a file became unreadable. The owner of the watcher then reads the files. If the files are
//! invalid, the owner keeps its last valid value and logs the error. The watcher does not report
//! the same content again.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::clock;
use xxhash_rust::xxh3::Xxh3Default;

/// Watches a group of files that are used together, such as a certificate and its key.
#[derive(Debug, Clone)]
pub struct FileWatcher {
    files: Arc<[PathBuf]>,
    /// The state of the files at the last report. `None`: the current state is to be reported as a
    /// change.
    reported: Option<FileState>,
    /// Whether the next call of [`changed`](Self::changed) first waits for one poll interval.
    is_retry_delayed: bool,
}

/// The state of all files of a watcher together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    /// All files are readable. The value is a hash of their contents.
    Content(u64),
    /// At least one file is missing or cannot be read.
    Unreadable,
}

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a new state must be unchanged before it is reported, because a file may be
/// half-written.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Number of bytes of each file that are compared. No owner of a watcher accepts a larger file.
const MAX_COMPARED_BYTES: u64 = (1 << 20) + 1;

impl FileWatcher {
    /// Creates a watcher of files. It reports the current state as the first change.
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { files: files.into_iter().collect(), reported: None, is_retry_delayed: false }
    }

    /// Marks the current state of the files as reported. Blocks on file reads. Call it before the
    /// owner reads the files, so that a change after that call is reported.
    pub fn skip_current(&mut self) {
        self.reported = Some(FileState::read(&self.files));
    }

    /// Makes the watcher report the current state again, for an owner that could not read the
    /// files. [`changed`](Self::changed) reports it after one poll interval. Without effect if the
    /// last report was that a file is unreadable: the watcher reports when the file becomes
    /// readable.
    pub fn retry_later(&mut self) {
        if self.reported != Some(FileState::Unreadable) {
            self.reported = None;
            self.is_retry_delayed = true;
        }
    }

    /// Whether the files have changed since the last report, and marks their state as reported.
    /// Blocks on file reads. Can report a half-written file, because it does not wait for
    /// `SETTLE_TIME`.
    pub fn poll(&mut self) -> bool {
        let state = Some(FileState::read(&self.files));
        std::mem::replace(&mut self.reported, state) != state
    }

    /// Waits until the files have changed since the last report and their new state has been stable
    /// for `SETTLE_TIME`. Polls every second. The future can be dropped and the method called again
    /// without the loss of a change.
    pub async fn changed(&mut self) {
        if self.is_retry_delayed {
            sleep(POLL_INTERVAL).await;
            self.is_retry_delayed = false;
        }
        loop {
            let state = self.read_state().await;
            if self.reported != Some(state) {
                sleep(SETTLE_TIME).await;
                if self.read_state().await == state {
                    self.reported = Some(state);
                    return;
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The paths of the watched files.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    async fn read_state(&self) -> FileState {
        let files = self.files.clone();
        let state = tokio::task::spawn_blocking(move || FileState::read(&files));
        state.await.unwrap_or(FileState::Unreadable)
    }
}

impl FileState {
    fn read(files: &[PathBuf]) -> Self {
        let mut hash = Xxh3Default::new();
        let result = files.iter().try_for_each(|file| hash_file(file, &mut hash));
        result.map_or(Self::Unreadable, |()| Self::Content(hash.digest()))
    }
}

/// Adds the content and the length of a file to a hash. Because of the length, the contents `ab`
/// and `c` of two files have another hash than `a` and `bc`.
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
        assert!(
            !is_changed_within(&mut watcher, limit).await,
            "the missing file was already reported"
        );
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
        assert!(!is_changed_within(&mut watcher, limit).await, "the current state was skipped");
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

    /// The kubelet updates a volume in this way: it writes a new folder and replaces the symbolic
    /// link `..data`.
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
