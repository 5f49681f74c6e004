//! Reads the events of the usage log in order, across rotations of the file.

use super::event::LineId;
use bytes::Bytes;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokenweir_gateway::telemetry::rotating_file::rotated_path;

/// Reads the events after the last one that the receiver has acknowledged.
pub(super) struct EventReader {
    path: PathBuf,
    last: u64,
    opened: Option<OpenedFile>,
    /// The line of the next event, if it has already been read.
    next: Vec<u8>,
}

struct OpenedFile {
    lines: BufReader<File>,
    inode: u64,
}

/// The events of one request to the receiver.
pub(super) struct EventBatch {
    /// The events as a JSON array.
    pub(super) body: Bytes,
    pub(super) series: String,
    pub(super) last: u64,
    /// Number of events up to the end of this batch that were removed before they were read.
    pub(super) expired: u64,
}

/// Maximum number of events of a batch.
const MAX_EVENTS: usize = 500;
/// Length in bytes from which a batch gets no further event.
const MAX_BATCH_BYTES: usize = 512 << 10;

impl EventReader {
    pub(super) fn new(path: &Path, last: u64) -> Self {
        Self {
            path: path.to_owned(),
            last,
            opened: None,
            next: Vec::new(),
        }
    }

    /// Reads the next events up to the event `until`. `None`: there is no further event.
    pub(super) fn read_batch(&mut self, until: u64) -> io::Result<Option<EventBatch>> {
        let mut body = Vec::new();
        let mut found: Option<EventBatch> = None;
        let mut events = 0;
        while events < MAX_EVENTS && body.len() < MAX_BATCH_BYTES && self.last < until {
            let Some(id) = self.peek()? else { break };
            if id.sequence > until {
                break;
            }
            body.push(if events == 0 { b'[' } else { b',' });
            body.extend_from_slice(self.next.trim_ascii_end());
            self.next.clear();
            // Events that were removed before the first push do not count as missing.
            let expired = if self.last == 0 {
                0
            } else {
                id.sequence - self.last - 1
            };
            self.last = id.sequence;
            events += 1;
            let batch = found.get_or_insert_with(|| EventBatch {
                body: Bytes::new(),
                series: id.series,
                last: 0,
                expired: 0,
            });
            batch.last = id.sequence;
            batch.expired += expired;
        }
        body.push(b']');
        Ok(found.map(|batch| EventBatch {
            body: body.into(),
            ..batch
        }))
    }

    /// Reads the next event after `last` into `next`. `None`: there is no further event.
    fn peek(&mut self) -> io::Result<Option<LineId>> {
        if let Some(id) = self.read_event()? {
            return Ok(Some(id));
        }
        let current = fs::metadata(&self.path)?.ino();
        if self
            .opened
            .as_ref()
            .is_some_and(|opened| opened.inode == current)
        {
            return Ok(None);
        }
        // The file was rotated, perhaps more than once, or is not open yet.
        for path in [rotated_path(&self.path), self.path.clone()] {
            self.next.clear();
            self.opened = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                file => Some(OpenedFile::new(file?)?),
            };
            if let Some(id) = self.read_event()? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Reads the next event after `last` from the open file. `None`: the file ends.
    fn read_event(&mut self) -> io::Result<Option<LineId>> {
        let Some(opened) = &mut self.opened else {
            return Ok(None);
        };
        loop {
            if self.next.is_empty() {
                opened.lines.read_until(b'\n', &mut self.next)?;
            }
            if self.next.last() != Some(&b'\n') {
                // A write of this line can fail, so its bytes are read again.
                let read = i64::try_from(self.next.len()).unwrap_or(0);
                opened.lines.seek(SeekFrom::Current(-read))?;
                self.next.clear();
                return Ok(None);
            }
            match LineId::parse(self.next.trim_ascii_end()) {
                Some(id) if id.sequence > self.last => return Ok(Some(id)),
                // The receiver has the event, or another program has written the line.
                _ => self.next.clear(),
            }
        }
    }
}

impl OpenedFile {
    fn new(file: File) -> io::Result<Self> {
        let inode = file.metadata()?.ino();
        Ok(Self {
            lines: BufReader::new(file),
            inode,
        })
    }
}
