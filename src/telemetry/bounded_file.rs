//! A file of lines that does not grow without end: when it is full it becomes the old one, in
//! place of the old one before it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file with an end.
pub(super) struct Bounded {
    path: PathBuf,
    file: File,
    length: u64,
    max: u64,
    tally: Arc<Tally>,
    is_failing: bool,
}

/// Lines, by what became of them.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) written: AtomicU64,
    pub(super) failed: AtomicU64,
}

impl Bounded {
    /// Goes on at the end of a file that may hold `max` bytes.
    pub(super) fn open(path: &Path, max: u64, tally: Arc<Tally>) -> io::Result<Self> {
        // Opening a pipe would wait for its reader.
        if fs::metadata(path).is_ok_and(|known| !known.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a file"));
        }
        let file = append(path)?;
        let length = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length, max, tally, is_failing: false })
    }

    /// All of a line or nothing of it.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.length > 0 && self.length + line.len() as u64 > self.max {
            self.turn()?;
        }
        if let Err(error) = self.file.write_all(line) {
            // Half a line would make the next one unreadable too.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        match fs::rename(&self.path, old(&self.path)) {
            // Somebody has taken it away.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        self.file = append(&self.path)?;
        self.length = self.file.metadata()?.len();
        Ok(())
    }
}

impl Write for Bounded {
    /// Takes a whole line. What fails is counted, and told when it begins to fail.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let result = self.append(line);
        let count = if result.is_ok() { &self.tally.written } else { &self.tally.failed };
        count.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = &result
            && !self.is_failing
        {
            tracing::error!(file = %self.path.display(), %error, "the file cannot be written");
        }
        self.is_failing = result.is_err();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn old(path: &Path) -> PathBuf {
    let mut old = OsString::from(path);
    old.push(".old");
    old.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tokenweir-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_full_file_becomes_the_old_one_and_both_stay_within_their_bound() {
        let folder = folder("turns");
        let path = folder.join("capture.jsonl");
        let tally = Arc::new(Tally::default());
        let mut file = Bounded::open(&path, 50, tally.clone()).unwrap();
        for number in 0..20 {
            file.write_all(format!("{{\"a\":{number:02}}}\n").as_bytes()).unwrap();
            let bytes = |path: &Path| fs::metadata(path).map_or(0, |known| known.len());
            assert!(bytes(&path) <= 50 && bytes(&old(&path)) <= 50);
        }
        let both = fs::read_to_string(old(&path)).unwrap() + &fs::read_to_string(&path).unwrap();
        let expected = (10..20).map(|number| format!("{{\"a\":{number}}}\n")).collect::<Vec<_>>();
        assert_eq!(both, expected.concat(), "the newest lines, whole and in order");
        assert_eq!(tally.written.load(Ordering::Relaxed), 20);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_is_there_is_continued_and_counts_towards_the_bound() {
        let folder = folder("continued");
        let path = folder.join("capture.jsonl");
        fs::write(&path, "before\n").unwrap();
        let mut file = Bounded::open(&path, 14, Arc::default()).unwrap();
        file.write_all(b"during\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before\nduring\n");
        file.write_all(b"after\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after\n");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_disk_that_is_full_costs_lines_which_are_counted_and_nothing_else() {
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let tally = Arc::new(Tally::default());
        let path = PathBuf::from("/dev/full");
        let mut file = Bounded {
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
    fn what_is_no_file_is_refused() {
        let error = Bounded::open(Path::new("/dev/null"), 1, Arc::default()).err().unwrap();
        assert_eq!(error.to_string(), "this is not a file");
        assert!(Bounded::open(Path::new("/nowhere/capture.jsonl"), 1, Arc::default()).is_err());
    }
}
