//! Detects changes of files: the configuration, lists of backends, API keys and certificates.
//!
//! [`FileWatcher`] polls the content of the files, so it needs no kernel notifications. Polling detects files
//! that are written in place, files that are replaced, and the symbolic links that Kubernetes replaces in
//! volumes. `docs/decisions/0007-log-files-and-watched-files.md` states the reasons.
//!
//! The watcher reports a change if the content of the files differs from the last reported content, or if a
//! file became unreadable. The owner of the watcher then reads the files. If the files are invalid, the owner
//! keeps its last valid value and logs the error. The watcher does not report that content again.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::atomic::AtomicCount;
use tokio::time::sleep;
use xxhash_rust::xxh3::Xxh3Default;

/// Watches a group of files that are used together, such as a certificate and its key.
#[derive(Debug, Clone)]
pub struct FileWatcher {
    files: Arc<[PathBuf]>,
    /// Whether a path may be a folder, whose files ([`files_of`]) are watched.
    are_folders_allowed: bool,
    /// The state of the files at the last report. `None`: the next call reports the current state as a change.
    reported: Option<FileState>,
    /// Whether the next call of [`changed`](Self::changed) first waits for one poll interval.
    is_retry_delayed: bool,
    /// Number of reads of the files that have started and not ended.
    pending_reads: Arc<AtomicCount>,
}

/// The state of all files of a watcher together: a hash of their contents, or the first problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    /// All files are readable. The value is a hash of their contents.
    Content(u64),
    /// The file is missing, or a read of the file fails.
    Failed,
    /// The path is not a regular file, but a directory, a FIFO or a device. A FIFO without a writer would block
    /// its reader.
    NotRegular,
    /// A read of the file takes longer than [`READ_LIMIT`], as on a file system that hangs.
    Late,
}

/// Why the owner of a watcher could not load a value from the files.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E> {
    /// A read of the files would block, or takes too long.
    #[error("{0}")]
    Unread(String),
    /// The function that loads the value from the files failed.
    #[error("{0}")]
    Invalid(E),
}

/// Longest wait for the content of a file.
pub const READ_LIMIT: Duration = Duration::from_secs(5);
/// Time between two polls after a read that took too long. The thread of that read stays blocked until the file
/// system responds.
const LATE_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of reads of one watcher that have started and not ended.
const MAX_PENDING_READS: usize = 64;
/// Time between two polls of the files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a new state must stay unchanged before it is reported, because a program may still be writing
/// the file.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Number of bytes of each file that are compared: one more than the largest file that an owner of a watcher
/// accepts.
const MAX_COMPARED_BYTES: u64 = (1 << 20) + 1;
const MAX_FOLDER_FILES: usize = 256;

impl FileWatcher {
    /// Creates a watcher of files. It reports the current state as the first change.
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            files: files.into_iter().collect(),
            are_folders_allowed: false,
            reported: None,
            is_retry_delayed: false,
            pending_reads: Arc::default(),
        }
    }

    /// Creates a watcher of a file, or of the files of a folder.
    pub fn of_file_or_folder(path: PathBuf) -> Self {
        Self {
            are_folders_allowed: true,
            ..Self::new([path])
        }
    }

    /// Marks the current state of the files as reported. Blocks on file reads. The owner calls this method
    /// before it reads the files, so that every later change is reported.
    pub fn skip_current(&mut self) {
        self.reported = Some(FileState::read(&self.files, self.are_folders_allowed));
    }

    /// Marks the current state of the files as reported, without blocking the thread. Waits at most
    /// [`READ_LIMIT`].
    pub async fn skip_current_within_limit(&mut self) {
        self.reported = Some(self.read_state().await);
    }

    /// Why the files must not be read: according to the last report, a read would block. `None`: the files can
    /// be read, or are missing.
    fn problem(&self) -> Option<&'static str> {
        match self.reported {
            Some(FileState::NotRegular) => Some(NOT_REGULAR),
            Some(FileState::Late) => Some(LATE),
            _ => None,
        }
    }

    /// Loads a value from the files with `load`, which may block, after a report. `is_unreadable` tells whether
    /// an error of `load` means that the files could not be read. In this case, the watcher reports a change
    /// again later, because the cause may disappear without a change of the files.
    pub async fn load<T: Send + 'static, E: Send + 'static>(
        &mut self,
        load: impl FnOnce() -> Result<T, E> + Send + 'static,
        is_unreadable: impl FnOnce(&E) -> bool,
    ) -> Result<T, LoadError<E>> {
        let files = self.files.iter().map(|file| file.display().to_string());
        let files = files.collect::<Vec<_>>().join(", ");
        let unread = |problem: &str| Err(LoadError::Unread(format!("{files}: {problem}")));
        if let Some(problem) = self.problem() {
            return unread(problem);
        }
        let loaded = read_within_limit(load).await;
        if loaded
            .as_ref()
            .is_none_or(|loaded| loaded.as_ref().is_err_and(is_unreadable))
        {
            self.retry_later();
        }
        loaded.map_or_else(
            || unread(LOAD_LATE),
            |loaded| loaded.map_err(LoadError::Invalid),
        )
    }

    /// Makes the watcher report the current state again, for an owner that could not read the files.
    /// [`changed`](Self::changed) reports it after one poll interval. This has no effect if the last report was
    /// that a file is unreadable: the watcher then reports when the file becomes readable.
    pub fn retry_later(&mut self) {
        if matches!(self.reported, None | Some(FileState::Content(_))) {
            self.reported = None;
            self.is_retry_delayed = true;
        }
    }

    /// Whether the files have changed since the last report. Marks their state as reported. Blocks on file
    /// reads. A half-written file can count as a change, because this method does not wait for `SETTLE_TIME`.
    pub fn poll(&mut self) -> bool {
        let state = Some(FileState::read(&self.files, self.are_folders_allowed));
        std::mem::replace(&mut self.reported, state) != state
    }

    /// Waits until the files have changed since the last report and their new state has been stable for
    /// `SETTLE_TIME`. Polls every second. If the future is dropped, no change is lost: the next call reports
    /// it.
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
            let is_late = state == FileState::Late;
            sleep(if is_late {
                LATE_POLL_INTERVAL
            } else {
                POLL_INTERVAL
            })
            .await;
        }
    }

    async fn read_state(&self) -> FileState {
        let files = self.files.clone();
        let are_folders_allowed = self.are_folders_allowed;
        let pending_reads = self.pending_reads.clone();
        if !pending_reads.add_within(1, MAX_PENDING_READS) {
            return FileState::Late;
        }
        let read = move || {
            let state = FileState::read(&files, are_folders_allowed);
            pending_reads.sub(1);
            state
        };
        read_within_limit(read).await.unwrap_or(FileState::Late)
    }
}

/// The text for operators about a path that is not a regular file.
const NOT_REGULAR: &str = "this is no regular file: a directory, a FIFO or a device";
/// The text for operators about a file whose read does not end in time.
const LATE: &str = "reading this file takes longer than 5 s: its file system does not respond";
/// The text for operators about a file that the watcher could read and `load` could not.
const LOAD_LATE: &str = "it could not be read in time";

/// Runs `read`, which may block, on a thread of its own. `None`: `read` took longer than
/// [`READ_LIMIT`], or panicked.
pub async fn read_within_limit<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::time::timeout(READ_LIMIT, tokio::task::spawn_blocking(read))
        .await
        .ok()?
        .ok()
}

/// Opens a file to read it. Fails if the path is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let require_regular = |is_file: bool| {
        if is_file {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, NOT_REGULAR))
        }
    };
    // This check precedes `open`, which would wait for the writer of a FIFO.
    require_regular(fs::metadata(path)?.is_file())?;
    let file = File::open(path)?;
    require_regular(file.metadata()?.is_file())?;
    Ok(file)
}

/// The files of a folder in the order of their names, without hidden files. If the path is not a folder, the
/// path itself. Fails if there are no files or more than 256, or if one is not a regular file.
pub fn files_of(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if is_hidden {
            continue;
        }
        let file = entry.path();
        if !fs::metadata(&file)?.is_file() {
            let problem = format!("{}: {NOT_REGULAR}", file.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        files.push(file);
    }
    if files.is_empty() || files.len() > MAX_FOLDER_FILES {
        let problem =
            format!("a folder must have 1 to {MAX_FOLDER_FILES} files that are not hidden");
        return Err(io::Error::other(problem));
    }
    files.sort_unstable();
    Ok(files)
}

impl FileState {
    fn read(paths: &[PathBuf], are_folders_allowed: bool) -> Self {
        let mut hash = Xxh3Default::new();
        let mut read = || {
            for path in paths {
                if !are_folders_allowed {
                    hash_file(path, &mut hash)?;
                    continue;
                }
                for file in files_of(path)? {
                    hash.update(file.as_os_str().as_encoded_bytes());
                    hash_file(&file, &mut hash)?;
                }
            }
            Ok::<(), io::Error>(())
        };
        match read() {
            Ok(()) => Self::Content(hash.digest()),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Self::NotRegular,
            Err(_) => Self::Failed,
        }
    }
}

/// Adds the content and the length of a file to a hash. The length distinguishes two files with the contents
/// `ab` and `c` from two files with `a` and `bc`.
fn hash_file(file: &Path, hash: &mut Xxh3Default) -> io::Result<()> {
    let mut content = Vec::new();
    let length = open_regular(file)?
        .take(MAX_COMPARED_BYTES)
        .read_to_end(&mut content)?;
    hash.update(&content);
    hash.update(&length.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;
    use std::fs;
    use std::os::unix::fs::symlink;
    use tokio::time::timeout;

    async fn is_changed_within(watcher: &mut FileWatcher, limit: Duration) -> bool {
        timeout(limit, watcher.changed()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn each_stable_change_is_reported_once() {
        let folder = TempFolder::new("watched-file");
        let path = folder.path().join("a");
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
        assert!(
            !is_changed_within(&mut watcher, limit).await,
            "same content"
        );
        fs::remove_file(&path).unwrap();
        watcher.changed().await;
        fs::write(&path, "one").unwrap();
        watcher.changed().await;
        fs::write(&path, "three").unwrap();
        watcher.skip_current();
        assert!(
            !is_changed_within(&mut watcher, limit).await,
            "the current state was skipped"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failed_loads_are_retried_and_unreadable_files_not() {
        let folder = TempFolder::new("watched-retry");
        let path = folder.write("a", "one");
        let mut watcher = FileWatcher::new([path.clone()]);
        watcher.changed().await;
        watcher.retry_later();
        assert!(!is_changed_within(&mut watcher, POLL_INTERVAL / 2).await);
        watcher.changed().await;
        fs::remove_file(&path).unwrap();
        watcher.changed().await;
        watcher.retry_later();
        assert!(!is_changed_within(&mut watcher, POLL_INTERVAL * 10).await);
    }

    #[test]
    fn a_new_file_of_a_folder_is_reported() {
        let folder = TempFolder::new("watched-folder");
        folder.write("a", "one");
        let mut watcher = FileWatcher::of_file_or_folder(folder.path().to_owned());
        assert!(watcher.poll() && !watcher.poll());
        folder.write("b", "two");
        assert!(watcher.poll());
        folder.write(".hidden", "three");
        assert!(!watcher.poll());
        fs::create_dir(folder.path().join("c")).unwrap();
        assert!(watcher.poll() && watcher.problem().is_some());
        let files = files_of(folder.path()).unwrap_err();
        assert!(files.to_string().contains("/c: this is no regular file"));
        let mut watcher = FileWatcher::new([folder.path().to_owned()]);
        assert!(watcher.poll() && watcher.problem().is_some(), "no folder");
    }

    #[test]
    fn a_change_of_any_file_is_reported() {
        let folder = TempFolder::new("watched-group");
        let files = ["cert", "key"].map(|name| folder.path().join(name));
        let mut watcher = FileWatcher::new(files.clone());
        assert!(watcher.poll(), "both are missing");
        fs::write(&files[0], "ab").unwrap();
        assert!(!watcher.poll(), "one is missing");
        fs::write(&files[1], "c").unwrap();
        assert!(watcher.poll());
        fs::write(&files[0], "a").unwrap();
        fs::write(&files[1], "bc").unwrap();
        assert!(watcher.poll() && !watcher.poll());
    }

    /// A FIFO without a writer blocks its reader forever.
    #[tokio::test(start_paused = true)]
    async fn a_blocking_file_and_its_replacement_are_reported() {
        let folder = TempFolder::new("watched-fifo");
        let path = folder.write("a", "one");
        let mut watcher = FileWatcher::new([path.clone()]);
        watcher.changed().await;
        assert_eq!(watcher.problem(), None);
        fs::remove_file(&path).unwrap();
        let status = std::process::Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap();
        assert!(status.success());
        watcher.changed().await;
        assert_eq!(watcher.problem(), Some(NOT_REGULAR));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "two").unwrap();
        watcher.changed().await;
        assert_eq!(watcher.problem(), None);
    }

    #[tokio::test]
    async fn a_slow_read_is_given_up() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        tokio::time::pause();
        let reading = tokio::spawn(read_within_limit(move || receiver.recv()));
        tokio::task::yield_now().await;
        tokio::time::advance(READ_LIMIT * 2).await;
        assert!(reading.await.unwrap().is_none());
        drop(sender);
        assert_eq!(read_within_limit(|| 7).await, Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn files_loaded_late_are_reported_again() {
        let folder = TempFolder::new("watched-load");
        let mut watcher = FileWatcher::new([folder.write("a", "one")]);
        watcher.changed().await;
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let loading = tokio::spawn(async move {
            let result = watcher.load(move || receiver.recv(), |_| false).await;
            (result, watcher)
        });
        tokio::task::yield_now().await;
        tokio::time::advance(READ_LIMIT * 2).await;
        let (result, mut watcher) = loading.await.unwrap();
        let error = result.unwrap_err().to_string();
        assert!(
            error.ends_with("/a: it could not be read in time"),
            "{error}"
        );
        drop(sender);
        watcher.changed().await;
        let loaded = watcher.load(|| Err::<(), _>("invalid"), |_| false).await;
        assert_eq!(loaded.unwrap_err().to_string(), "invalid");
        assert!(
            !is_changed_within(&mut watcher, POLL_INTERVAL * 10).await,
            "it was readable"
        );
    }

    /// The kubelet updates a volume in this way: it writes a new folder, and then replaces the symbolic link
    /// `..data`.
    #[tokio::test(start_paused = true)]
    async fn a_replaced_symbolic_link_is_a_change() {
        let folder = TempFolder::new("watched-links");
        let path = |name: &str| folder.path().join(name);
        folder.write("1/a.yaml", "1");
        folder.write("2/a.yaml", "2");
        symlink("1", path("..data")).unwrap();
        symlink("..data/a.yaml", path("a.yaml")).unwrap();
        let mut watcher = FileWatcher::new([path("a.yaml")]);
        watcher.changed().await;
        symlink("2", path("..next")).unwrap();
        fs::rename(path("..next"), path("..data")).unwrap();
        watcher.changed().await;
        assert_eq!(fs::read_to_string(&watcher.files[0]).unwrap(), "2");
    }
}
