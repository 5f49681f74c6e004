//! Writes the file of the usage log. Only one process writes it at a time. Its lines are numbered without gaps,
//! even across restarts.

use super::counters::UsageCounters;
use super::disk_sync::{WrittenLines, warn_unwritable};
use super::event::{EventContent, Gap, LINE_START, LineId, MAX_LINE_BYTES};
use super::state_file::StateFile;
use super::usage_record::UsageRecord;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;
use tokenweir_gateway::telemetry::rotating_file::{RotatingFile, rotated_path};
use tokenweir_net::client::receiver::Receiver;
use tokenweir_protocol::clock;

/// The file, its size limit and the receiver of the usage log.
#[derive(Debug, Clone)]
pub struct UsageLogSettings {
    /// The path of the file. The rotated file is `FILE.old`.
    pub file: PathBuf,
    /// Maximum length of the file and of its rotated predecessor together, in bytes.
    pub max_bytes: u64,
    /// The name of this gateway in the events.
    pub gateway: String,
    /// The receiver of the events. `None`: events are only written to the file.
    pub push: Option<Receiver>,
}

/// The open file. Dropping it writes the event that the gateway has stopped.
pub(super) struct UsageFile {
    file: RotatingFile,
    path: PathBuf,
    source: String,
    last: LineId,
    /// Whether the previous process ended without its last line.
    is_unclean: bool,
    counters: Arc<UsageCounters>,
}

/// Pause after a failed write before the next attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl UsageFile {
    /// Opens the file and continues its line numbers. `None`: another process writes the file. `waits`: whether
    /// to wait until that process ends. Fails if the file has lines that do not belong to a usage log.
    pub(super) fn open(
        settings: &UsageLogSettings,
        counters: &Arc<UsageCounters>,
        waits: bool,
    ) -> io::Result<Option<Self>> {
        let path = settings.file.clone();
        let Some(state) = StateFile::lock(&path, waits)? else {
            return Ok(None);
        };
        // Opening creates the file, and fails if the path is not a regular file.
        drop(RotatingFile::open(
            &path,
            settings.max_bytes / 2,
            Arc::default(),
        )?);
        let end = FileEnd::repair(&path)?;
        let file = RotatingFile::open(&path, settings.max_bytes / 2, Arc::default())?.durable();
        let last = match end.last {
            Some(last) => Some(last),
            None => FileEnd::read(&rotated_path(&path))?.last,
        };
        let is_unclean = end.is_cut || last.as_ref().is_some_and(|last| !last.is_stop);
        let last = last.unwrap_or_else(|| LineId {
            series: format!("{:016x}", fastrand::u64(..)),
            sequence: 0,
            is_stop: true,
        });
        counters
            .acknowledged
            .store(state.acknowledged(&last.series), Relaxed);
        let source = format!("/tokenweir/{}", settings.gateway);
        let counters = counters.clone();
        let mut opened = Self {
            file,
            path,
            source,
            last,
            is_unclean,
            counters,
        };
        // A failure here is harmless, because the event is written before the next record.
        let _ = opened.try_state_stop();
        opened.sync();
        // No other process can have set the state.
        let _ = opened.counters.state.set(Arc::new(state));
        Ok(Some(opened))
    }

    /// Opens the file when no other process writes it any more.
    pub(super) fn open_when_free(
        settings: &UsageLogSettings,
        counters: &Arc<UsageCounters>,
    ) -> Self {
        loop {
            match Self::open(settings, counters, true) {
                Ok(Some(opened)) => return opened,
                Ok(None) => {}
                Err(error) => warn_unwritable(&settings.file, &error),
            }
            thread::sleep(RETRY_PAUSE);
        }
    }

    /// Writes the records. Gap events precede them if the previous process was killed, and if records were lost.
    /// Waits while the file cannot be written.
    pub(super) fn write(&mut self, records: &[UsageRecord]) {
        self.retry(Self::try_state_stop);
        let lost = self.counters.unstated.take();
        if lost > 0 {
            let gap = Gap {
                cause: "lost",
                records: Some(lost),
            };
            self.retry(|file| file.try_append(EventContent::Gap(gap)));
            self.counters.gaps_lost.add(1);
        }
        for record in records {
            self.retry(|file| file.try_append(EventContent::Usage(record)));
        }
        self.counters.disk.add(self.written_lines(), &self.path);
    }

    /// Repeats a write until it succeeds.
    fn retry(&mut self, write: impl Fn(&mut Self) -> io::Result<()>) {
        let mut is_failing = false;
        while let Err(error) = write(self) {
            if !is_failing {
                warn_unwritable(&self.path, &error);
            }
            is_failing = true;
            thread::sleep(RETRY_PAUSE);
        }
        if is_failing {
            tracing::info!(file = %self.path.display(), "the usage log is written again");
        }
    }

    /// Writes a gap event if the previous process ended without its last line.
    fn try_state_stop(&mut self) -> io::Result<()> {
        if self.is_unclean {
            let gap = Gap {
                cause: "unclean_stop",
                records: None,
            };
            self.try_append(EventContent::Gap(gap))?;
            self.is_unclean = false;
            self.counters.gaps_unclean_stop.add(1);
        }
        Ok(())
    }

    fn try_append(&mut self, content: EventContent<'_>) -> io::Result<()> {
        let sequence = self.last.sequence + 1;
        let next = LineId {
            sequence,
            series: self.last.series.clone(),
            is_stop: false,
        };
        let line = next.line(&self.source, content, clock::wall_time());
        if line.len() > MAX_LINE_BYTES {
            self.counters.on_lost(1);
            return Ok(());
        }
        self.file.append(&line)?;
        self.last = next;
        let written = u64::from(matches!(content, EventContent::Usage(_)));
        self.counters.written.add(written);
        Ok(())
    }

    /// Waits until the disk has all lines.
    fn sync(&self) {
        self.counters.disk.sync(&self.written_lines(), &self.path);
    }

    fn written_lines(&self) -> WrittenLines {
        WrittenLines {
            file: self.file.present(),
            last: self.last.sequence,
        }
    }
}

impl Drop for UsageFile {
    fn drop(&mut self) {
        // Without the stop event, the next process writes a gap event.
        let is_complete = !self.is_unclean && self.counters.unstated.get() == 0;
        if is_complete && self.try_append(EventContent::Stop).is_ok() {
            self.sync();
        }
    }
}

/// Fails if a file, which may be absent, has lines that are not of a usage log. The file is not changed.
pub(super) fn check_lines(path: &Path) -> io::Result<()> {
    let read = |path: &Path| {
        // Opening a pipe would block until another process writes it.
        if path.is_file() {
            FileEnd::read(path)
        } else {
            Ok(FileEnd::default())
        }
    };
    if read(path)?.last.is_none() {
        read(&rotated_path(path))?;
    }
    Ok(())
}

#[derive(Default)]
struct FileEnd {
    /// The last complete line. `None`: the file has none.
    last: Option<LineId>,
    /// Length of all complete lines in bytes.
    complete: u64,
    /// Whether the file ends with an incomplete line.
    is_cut: bool,
}

impl FileEnd {
    /// Reads the end of a file, which may be absent. Fails if the last lines do not belong to a usage log.
    fn read(path: &Path) -> io::Result<Self> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            file => file?,
        };
        let length = file.metadata()?.len();
        let start = length.saturating_sub(2 * MAX_LINE_BYTES as u64);
        file.seek(SeekFrom::Start(start))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let end = memchr::memrchr(b'\n', &text).map_or(0, |at| at + 1);
        let (lines, cut) = text.split_at(end);
        let common = cut.len().min(LINE_START.len());
        let foreign = || {
            let message = "it has lines that are not of a usage log; write another path";
            io::Error::new(io::ErrorKind::InvalidData, message)
        };
        if cut[..common] != LINE_START[..common] || (end == 0 && start > 0) {
            return Err(foreign());
        }
        let last = match lines.split_last() {
            None => None,
            Some((_, lines)) => {
                let line = lines
                    .rsplit(|byte| *byte == b'\n')
                    .next()
                    .unwrap_or_default();
                Some(LineId::parse(line).ok_or_else(foreign)?)
            }
        };
        Ok(Self {
            last,
            complete: start + end as u64,
            is_cut: !cut.is_empty(),
        })
    }

    /// Like [`FileEnd::read`]. Also removes an incomplete line, which a killed process or a full disk can
    /// leave.
    fn repair(path: &Path) -> io::Result<Self> {
        let end = Self::read(path)?;
        if end.is_cut {
            OpenOptions::new()
                .write(true)
                .open(path)?
                .set_len(end.complete)?;
        }
        Ok(end)
    }
}
