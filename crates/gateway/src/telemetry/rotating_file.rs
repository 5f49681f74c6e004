//! A file of lines with a size limit. A full file is renamed to `<name>.old`, which replaces an earlier one,
//! and a new file is started. Only the gateway's user can read the files, because they contain prompts and
//! responses.

use super::sanitize;
use serde::Serialize;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenweir_protocol::atomic::AtomicCounter;

/// An append-only file with a size limit.
pub struct RotatingFile {
    path: PathBuf,
    file: Arc<File>,
    /// Current length of the file in bytes.
    length: u64,
    /// Length in bytes above which the file is rotated.
    max_bytes: u64,
    counters: Arc<RotatingFileCounters>,
    /// Whether the last write failed.
    is_failing: bool,
    /// Value of [`REOPEN_REQUESTS`] when the file was opened.
    reopen_requests: u64,
    /// Whether a full file is synced to the disk before a new one is begun.
    is_durable: bool,
}

/// Permissions of the files that the gateway creates: read and write for its user only.
const FILE_MODE: u32 = 0o600;

static REOPEN_REQUESTS: AtomicCounter = AtomicCounter::new();

/// Makes each file reopen its path before its next line. Call this after a log rotation program has renamed the
/// files.
pub fn reopen_files() {
    REOPEN_REQUESTS.add(1);
}

/// Numbers of lines that were written, and of lines whose write failed.
#[derive(Debug, Default)]
pub struct RotatingFileCounters {
    /// Lines that were written.
    pub written: AtomicCounter,
    /// Lines whose write failed.
    pub failed: AtomicCounter,
}

/// Number of the records that were to be written to a file, by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FileRecordCounts {
    /// Records that are in the file.
    pub written: u64,
    /// Records that were not written because the queue was full, the disk failed, the gateway
    /// shut down or the writer panicked.
    pub dropped: u64,
}

impl FileRecordCounts {
    /// Returns the number of records for each result: first the name of the result, then the
    /// number.
    pub const fn by_result(&self) -> [(&'static str, u64); 2] {
        [("written", self.written), ("dropped", self.dropped)]
    }
}

impl RotatingFileCounters {
    /// Returns how many records were written to the file, and how many were dropped. `unwritten`: records that
    /// the owner of the file dropped before, which count as dropped.
    pub fn record_counts(&self, unwritten: u64) -> FileRecordCounts {
        FileRecordCounts {
            written: self.written.get(),
            dropped: unwritten + self.failed.get(),
        }
    }
}

impl RotatingFile {
    /// Opens a file for appending. Rotates the file before a line would make it longer than `max_bytes`. Fails
    /// if the path is not a regular file or cannot be opened.
    pub fn open(
        path: &Path,
        max_bytes: u64,
        counters: Arc<RotatingFileCounters>,
    ) -> io::Result<Self> {
        // Opening a pipe would block until another process reads it.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            let message = "not a regular file; configure the path of a file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let reopen_requests = REOPEN_REQUESTS.get();
        let file = Arc::new(open_for_append(path)?);
        let length = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            length,
            max_bytes,
            counters,
            is_failing: false,
            reopen_requests,
            is_durable: false,
        })
    }

    /// Makes a full file be synced to the disk before a new one is begun.
    #[must_use]
    pub fn durable(self) -> Self {
        Self {
            is_durable: true,
            ..self
        }
    }

    /// The file that is written now. Another thread can sync it to the disk.
    pub fn present(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Appends a value as one line of JSON.
    pub fn write_json(&mut self, value: &impl Serialize) {
        let mut line = sanitize::json(serde_json::to_string(value).unwrap_or_default());
        line.push('\n');
        // A failed write is counted and not returned.
        let _ = self.write_all(line.as_bytes());
    }

    /// Appends a complete line. After a failed write, the file keeps its previous content. The write is not
    /// counted.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if line.len() as u64 > self.max_bytes {
            let message = "a line is longer than the limit of the file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let reopen_requests = REOPEN_REQUESTS.get();
        if reopen_requests != self.reopen_requests {
            self.sync_if_durable()?;
            self.reopen()?;
            self.reopen_requests = reopen_requests;
        }
        if self.length > 0 && self.length + line.len() as u64 > self.max_bytes {
            self.rotate()?;
        }
        if let Err(error) = (&*self.file).write_all(line) {
            // A partial line would make the next line unreadable too, so it is removed.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.sync_if_durable()?;
        match fs::rename(&self.path, rotated_path(&self.path)) {
            // Another process has removed or renamed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        self.reopen()
    }

    fn sync_if_durable(&self) -> io::Result<()> {
        if self.is_durable {
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Opens the file by its path. After an error, the previous file stays open.
    fn reopen(&mut self) -> io::Result<()> {
        self.file = Arc::new(open_for_append(&self.path)?);
        self.length = self.file.metadata()?.len();
        Ok(())
    }
}

impl Write for RotatingFile {
    /// Writes one complete line. Never returns an error: failed writes are counted, and the first of several
    /// consecutive failures is logged.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let result = self.append(line);
        let counter = if result.is_ok() {
            &self.counters.written
        } else {
            &self.counters.failed
        };
        counter.add(1);
        if let Err(error) = &result
            && !self.is_failing
        {
            tracing::error!(
                file = %self.path.display(),
                %error,
                "the file cannot be written: its lines are dropped until a write succeeds"
            );
        }
        self.is_failing = result.is_err();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open_for_append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(FILE_MODE)
        .open(path)
}

/// The path to which the full file at `path` is renamed.
pub fn rotated_path(path: &Path) -> PathBuf {
    let mut rotated = OsString::from(path);
    rotated.push(".old");
    rotated.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tokenweir_net::testing::TempFolder;

    #[test]
    fn a_full_file_is_rotated() {
        let folder = TempFolder::new("rotating-rotation");
        let path = folder.path().join("capture.jsonl");
        let mut file = RotatingFile::open(&path, 50, Arc::default()).unwrap();
        for number in 0..20 {
            file.write_all(format!("{{\"a\":{number:02}}}\n").as_bytes())
                .unwrap();
            let length = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
            assert!(length(&path) <= 50 && length(&rotated_path(&path)) <= 50);
        }
        let lines =
            fs::read_to_string(rotated_path(&path)).unwrap() + &fs::read_to_string(&path).unwrap();
        let expected = (10..20)
            .map(|number| format!("{{\"a\":{number}}}\n"))
            .collect::<Vec<_>>();
        assert_eq!(
            lines,
            expected.concat(),
            "the newest lines, whole and in order"
        );
        assert_eq!(file.counters.written.get(), 20);
    }

    #[test]
    fn only_the_files_owner_may_read_it() {
        let folder = TempFolder::new("rotating-mode");
        let path = folder.path().join("payloads.jsonl");
        let mut file = RotatingFile::open(&path, 8, Arc::default()).unwrap();
        file.write_all(b"first\n").unwrap();
        file.write_all(b"second\n").unwrap();
        for path in [&path, &rotated_path(&path)] {
            assert_eq!(
                fs::metadata(path).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
    }

    #[test]
    fn a_renamed_file_is_reopened() {
        let folder = TempFolder::new("rotating-reopen");
        let path = folder.path().join("payloads.jsonl");
        let renamed = folder.path().join("payloads.jsonl.1");
        let mut file = RotatingFile::open(&path, 100, Arc::default()).unwrap();
        file.write_all(b"before\n").unwrap();
        fs::rename(&path, &renamed).unwrap();
        reopen_files();
        file.write_all(b"after\n").unwrap();
        assert_eq!(fs::read_to_string(&renamed).unwrap(), "before\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "after\n");
    }

    #[test]
    fn the_length_of_an_existing_file_counts() {
        let folder = TempFolder::new("rotating-append");
        let path = folder.write("capture.jsonl", "before\n");
        let mut file = RotatingFile::open(&path, 14, Arc::default()).unwrap();
        file.write_all(b"during\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before\nduring\n");
        file.write_all(b"after\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after\n");
    }

    #[test]
    fn only_lines_that_are_too_long_are_dropped() {
        let folder = TempFolder::new("rotating-long-line");
        let path = folder.path().join("capture.jsonl");
        let mut file = RotatingFile::open(&path, 8, Arc::default()).unwrap();
        file.write_all(b"too long a line\n").unwrap();
        file.write_all(b"short\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short\n");
        let [written, failed] =
            [&file.counters.written, &file.counters.failed].map(AtomicCounter::get);
        assert_eq!((written, failed), (1, 1));
    }

    #[test]
    fn lines_for_a_full_disk_are_counted() {
        let full_device = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let path = PathBuf::from("/dev/full");
        let mut file = RotatingFile {
            path,
            file: full_device.into(),
            length: 0,
            max_bytes: 100,
            counters: Arc::default(),
            is_failing: false,
            reopen_requests: 0,
            is_durable: false,
        };
        file.write_all(b"{}\n").unwrap();
        assert_eq!(file.counters.failed.get(), 1);
        assert_eq!((file.length, file.is_failing), (0, true));
    }

    #[test]
    fn only_paths_of_regular_files_are_accepted() {
        let error = RotatingFile::open(Path::new("/dev/null"), 1, Arc::default())
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "not a regular file; configure the path of a file"
        );
        assert!(
            RotatingFile::open(Path::new("/nowhere/capture.jsonl"), 1, Arc::default()).is_err()
        );
    }
}
