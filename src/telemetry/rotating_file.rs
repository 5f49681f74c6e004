//! A file of lines with a size limit: when it is full, it is renamed to `<name>.old`, which
//! replaces the previous one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An append-only file with a size limit.
pub(super) struct RotatingFile {
    path: PathBuf,
    file: File,
    length: u64,
    max: u64,
    tally: Arc<RotatingFileCounters>,
    is_failing: bool,
}

/// Counts of lines by result.
#[derive(Debug, Default)]
pub(super) struct RotatingFileCounters {
    pub(super) written: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl RotatingFile {
    /// Opens a file for appending. It may grow to `max` bytes.
    pub(super) fn open(
        path: &Path,
        max: u64,
        tally: Arc<RotatingFileCounters>,
    ) -> io::Result<Self> {
        // Opening a pipe would block until a reader opens it.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            let message = "not a regular file; configure the path of a file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let file = open_for_append(path)?;
        let length = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length, max, tally, is_failing: false })
    }

    /// Appends the whole line or nothing.
    fn append_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.length > 0 && self.length + line.len() as u64 > self.max {
            self.rotate()?;
        }
        if let Err(error) = self.file.write_all(line) {
            // A partial line would make the next line unreadable too.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        match fs::rename(&self.path, rotated_path(&self.path)) {
            // The file was removed or renamed by another process.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        self.file = open_for_append(&self.path)?;
        self.length = self.file.metadata()?.len();
        Ok(())
    }
}

impl Write for RotatingFile {
    /// Writes one whole line. Never fails: failures are counted, and the first of a row is logged.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let result = self.append_line(line);
        let count = if result.is_ok() { &self.tally.written } else { &self.tally.failed };
        count.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = &result
            && !self.is_failing
        {
            tracing::error!(
                file = %self.path.display(),
                %error,
                "writing the file failed: dropping lines until a write succeeds"
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
    OpenOptions::new().create(true).append(true).open(path)
}

fn rotated_path(path: &Path) -> PathBuf {
    let mut rotated = OsString::from(path);
    rotated.push(".old");
    rotated.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create_temp_dir(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tokenweir-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn full_file_is_rotated_and_both_files_stay_within_the_limit() {
        let folder = create_temp_dir("turns");
        let path = folder.join("capture.jsonl");
        let tally = Arc::new(RotatingFileCounters::default());
        let mut file = RotatingFile::open(&path, 50, tally.clone()).unwrap();
        for number in 0..20 {
            file.write_all(format!("{{\"a\":{number:02}}}\n").as_bytes()).unwrap();
            let bytes = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
            assert!(bytes(&path) <= 50 && bytes(&rotated_path(&path)) <= 50);
        }
        let both =
            fs::read_to_string(rotated_path(&path)).unwrap() + &fs::read_to_string(&path).unwrap();
        let expected = (10..20).map(|number| format!("{{\"a\":{number}}}\n")).collect::<Vec<_>>();
        assert_eq!(both, expected.concat(), "the newest lines, whole and in order");
        assert_eq!(tally.written.load(Ordering::Relaxed), 20);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn existing_file_is_appended_to_and_counts_towards_the_limit() {
        let folder = create_temp_dir("continued");
        let path = folder.join("capture.jsonl");
        fs::write(&path, "before\n").unwrap();
        let mut file = RotatingFile::open(&path, 14, Arc::default()).unwrap();
        file.write_all(b"during\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before\nduring\n");
        file.write_all(b"after\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after\n");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn full_disk_drops_lines_and_counts_them() {
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let tally = Arc::new(RotatingFileCounters::default());
        let path = PathBuf::from("/dev/full");
        let mut file = RotatingFile {
            path,
            file: full,
            length: 0,
            max: 100,
            tally: tally.clone(),
            is_failing: false,
        };
        file.write_all(b"{}\n").unwrap();
        assert_eq!(tally.failed.load(Ordering::Relaxed), 1);
        assert_eq!((file.length, file.is_failing), (0, true));
    }

    #[test]
    fn non_regular_file_is_rejected() {
        let error = RotatingFile::open(Path::new("/dev/null"), 1, Arc::default()).err().unwrap();
        assert_eq!(error.to_string(), "not a regular file; configure the path of a file");
        assert!(
            RotatingFile::open(Path::new("/nowhere/capture.jsonl"), 1, Arc::default()).is_err()
        );
    }
}
