//! The file `.FILE.state` next to the usage log. Its name keeps it out of the pattern `FILE*`. Its lock marks
//! the process that writes the log, and its content is the last event that the receiver acknowledged.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The state file, which this process has locked.
#[derive(Debug)]
pub(super) struct StateFile(File);

/// Length of the content in bytes: 16 digits of the series, a minus, 20 digits, and a line feed.
const LENGTH: usize = 38;

impl StateFile {
    /// Opens and locks the file next to `log`. `None`: another process has locked it. `waits`: whether to wait
    /// for the lock.
    pub(super) fn lock(log: &Path, waits: bool) -> io::Result<Option<Self>> {
        let mut name = OsString::from(".");
        name.push(log.file_name().unwrap_or_default());
        name.push(".state");
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let file = options.open(log.with_file_name(name))?;
        if waits {
            file.lock()?;
            return Ok(Some(Self(file)));
        }
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The number of the last acknowledged event of a series. 0: no event is acknowledged. Damaged content also
    /// gives 0, so that all events are pushed again.
    pub(super) fn acknowledged(&self, series: &str) -> u64 {
        let mut content = [0; LENGTH];
        let read = self.0.read_exact_at(&mut content, 0);
        let text = str::from_utf8(&content).unwrap_or_default();
        let sequence = text
            .trim_end()
            .strip_prefix(series)
            .and_then(|rest| rest.strip_prefix('-'));
        let sequence = sequence.and_then(|digits| digits.parse().ok());
        if read.is_ok() {
            sequence.unwrap_or(0)
        } else {
            0
        }
    }

    /// Stores the number of the last acknowledged event of a series.
    pub(super) fn acknowledge(&self, series: &str, sequence: u64) -> io::Result<()> {
        self.0
            .write_all_at(format!("{series}-{sequence:020}\n").as_bytes(), 0)
    }
}
