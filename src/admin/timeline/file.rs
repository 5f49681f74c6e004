//! The file of the timeline, with one mark per line. If the end of a mark becomes known later, the mark has two
//! lines.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_api::Mark;
use tokenweir_gateway::telemetry::non_blocking_writer::{
    NonBlockingWriter, NonBlockingWriterGuard,
};
use tokenweir_gateway::telemetry::rotating_file::{RotatingFile, RotatingFileCounters};
use tokenweir_gateway::telemetry::sanitize;
use tokenweir_net::file_watcher::open_regular;

/// Writes marks to the file on its own thread.
pub(super) struct TimelineFile {
    writer: NonBlockingWriter,
    _guard: NonBlockingWriterGuard,
}

/// Length in bytes at which the file becomes `FILE.old`, and a new file begins.
const MAX_BYTES: u64 = 1 << 20;

impl TimelineFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let counters = Arc::<RotatingFileCounters>::default();
        let file = RotatingFile::open(path, MAX_BYTES, counters)?;
        let (writer, guard) =
            NonBlockingWriter::start_with_linger("timeline", file, Duration::ZERO);
        Ok(Self {
            writer,
            _guard: guard,
        })
    }

    pub(super) fn write(&self, mark: &Mark) {
        let line = sanitize::json(serde_json::to_string(mark).unwrap_or_default());
        self.writer.give(line + "\n");
    }
}

/// Reads the marks of `FILE.old` and of the file, the oldest first. Their ends may be missing, and none of them
/// is still active. Unreadable lines are skipped, because a line may be cut anywhere, even within a character.
pub(super) fn read(path: &Path) -> Vec<Mark> {
    let mut old = OsString::from(path);
    old.push(".old");
    let files = [Path::new(&old), path];
    let files = files.into_iter().filter_map(|file| open_regular(file).ok());
    let lines = files.flat_map(|file| BufReader::new(file.take(MAX_BYTES)).split(b'\n'));
    let marks = lines
        .map_while(Result::ok)
        .filter_map(|line| serde_json::from_slice::<Mark>(&line).ok());
    marks
        .map(|mark| Mark {
            holds: false,
            ..mark
        })
        .collect()
}
