//! The non-blocking writer writes log lines in batches from its own thread, so that a slow reader of the output
//! never blocks a worker thread. If the queue is full, new lines are dropped and counted.

use super::batch_worker::BatchWorkerGuard;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::atomic::{AtomicCounter, AtomicFlag};
use tokenweir_request::batch_queue::BatchQueue;

/// Queues log lines for the thread that writes them to the output. Clones share one queue and one
/// thread.
#[derive(Clone)]
pub struct NonBlockingWriter(Arc<NonBlockingWriterState>);

/// Guard of the writer thread. Dropping the guard waits until the remaining lines are written, but
/// at most 1 s.
pub type NonBlockingWriterGuard = BatchWorkerGuard;

struct NonBlockingWriterState {
    line_queue: Arc<BatchQueue<String>>,
    written_lines: AtomicCounter,
    dropped_lines: AtomicCounter,
    /// Whether lines were dropped since a line was last written.
    is_dropping: AtomicFlag,
    /// Name of the output, such as the access log, in log messages.
    name: &'static str,
}

/// How long the first queued line waits for further lines, to be written together with them.
const BATCH_LINGER: Duration = Duration::from_millis(100);
/// Capacity of the queue, in bytes. Lines that do not fit are dropped.
const MAX_QUEUED_BYTES: usize = 8 << 20;
/// Maximum wait for the writer thread at shutdown. The thread does not end if nobody reads the output.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

impl NonBlockingWriter {
    /// Starts a thread that writes to `out`. The lines of one [`NonBlockingWriter::give`] call are
    /// written together. `out` is flushed after each batch. `name` is the name of the output in log messages.
    pub fn start(
        name: &'static str,
        out: impl Write + Send + 'static,
    ) -> (Self, NonBlockingWriterGuard) {
        Self::start_with_linger(name, out, BATCH_LINGER)
    }

    /// Like [`NonBlockingWriter::start`], with another wait for further lines. With a `linger` of 0, a line is
    /// written even if the process ends abruptly soon afterwards. Use 0 for outputs with few lines.
    pub fn start_with_linger(
        name: &'static str,
        mut out: impl Write + Send + 'static,
        linger: Duration,
    ) -> (Self, NonBlockingWriterGuard) {
        let line_queue = Arc::new(BatchQueue::new(linger, MAX_QUEUED_BYTES));
        let state = Arc::new(NonBlockingWriterState {
            line_queue: line_queue.clone(),
            written_lines: AtomicCounter::new(),
            dropped_lines: AtomicCounter::new(),
            is_dropping: AtomicFlag::default(),
            name,
        });
        let writer = Self(state.clone());
        let write = move |_: &_| state.write_queued_lines(&mut out);
        (
            writer,
            BatchWorkerGuard::start(line_queue, SHUTDOWN_TIMEOUT, write),
        )
    }

    /// Queues one or more lines, each with its line ending. If the queue is full, the lines are
    /// dropped and counted.
    pub fn give(&self, lines: String) {
        let bytes = lines.len();
        if let Err(lines) = self.0.line_queue.push(lines, bytes) {
            self.0.drop_lines(
                count_lines(&lines),
                "its reader does not read as fast as lines come",
            );
        }
    }

    /// Returns the number of lines that were written and flushed.
    pub fn written(&self) -> u64 {
        self.0.written_lines.get()
    }

    /// Returns the number of dropped lines. Lines are dropped if the queue is full or closed, or if the writer
    /// fails or panics.
    pub fn dropped(&self) -> u64 {
        self.0.dropped_lines.get()
    }
}

impl Write for NonBlockingWriter {
    /// Queues the bytes, which are whole lines. Never fails.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.give(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NonBlockingWriterState {
    /// Writes the queued lines. After a write error, for example of a closed output or a full disk, the
    /// lines that were not flushed are dropped and counted.
    fn write_queued_lines(&self, out: &mut impl Write) {
        let mut unflushed = 0;
        for lines in self.line_queue.take_batch() {
            unflushed += count_lines(&lines);
            if let Err(error) = attempt(|| out.write_all(lines.as_bytes())) {
                self.drop_lines(std::mem::take(&mut unflushed), &error);
            }
        }
        if let Err(error) = attempt(|| out.flush())
            && unflushed > 0
        {
            self.drop_lines(std::mem::take(&mut unflushed), &error);
        }
        self.written_lines.add(unflushed);
        if unflushed > 0 && self.is_dropping.replace(false) {
            tracing::info!(
                log = self.name,
                "the output of this log accepts lines again"
            );
        }
    }

    /// Counts `lines` as dropped. Logs a warning, unless a warning was logged since the last written line.
    fn drop_lines(&self, lines: u64, error: &str) {
        self.dropped_lines.add(lines);
        if !self.is_dropping.replace(true) {
            tracing::warn!(
                log = self.name,
                error,
                "lines of this log are lost: its output does not accept them"
            );
        }
    }
}

/// Runs a write and returns the text of its error. A panic of the write is returned as an error too.
fn attempt(write: impl FnOnce() -> io::Result<()>) -> Result<(), String> {
    let result = supervise::catch_panic(BackgroundTask::LOG_WRITER, write);
    result
        .unwrap_or_else(|| Err(io::Error::other("a panic")))
        .map_err(|error| error.to_string())
}

/// Counts the lines in `lines`, each with its line ending. `memchr` is faster than the byte-wise search of
/// `str::lines`.
fn count_lines(lines: &str) -> u64 {
    memchr::memchr_iter(b'\n', lines.as_bytes()).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufWriter;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A writer that sends each text to a channel. Before each write it waits for a message on the channel
    /// `gate`.
    struct GatedWriter {
        writes: Sender<String>,
        gate: Receiver<()>,
    }

    impl Write for GatedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // If `gate` has no sender, the call returns at once.
            let _ = self.gate.recv();
            self.writes
                .send(String::from_utf8(bytes.to_vec()).unwrap())
                .unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_in_ordered_batches() {
        let ((writes_sender, writes), (_, gate)) = (channel(), channel());
        let out = BufWriter::new(GatedWriter {
            writes: writes_sender,
            gate,
        });
        let (writer, guard) = NonBlockingWriter::start("test", out);
        let lines: Vec<String> = (0..1_000).map(|number| format!("{number}\n")).collect();
        for line in &lines {
            writer.give(line.clone());
        }
        drop(guard);
        let written: Vec<String> = writes.try_iter().collect();
        assert_eq!(written.concat(), lines.concat());
        assert!(written.len() < 10, "{} writes", written.len());
        assert_eq!(writer.dropped(), 0);
    }

    #[test]
    fn only_lines_in_the_output_count() {
        let full_device = || {
            std::fs::OpenOptions::new()
                .append(true)
                .open("/dev/full")
                .unwrap()
        };
        let buffered = BufWriter::new(full_device());
        let outputs: [Box<dyn Write + Send>; 2] = [Box::new(full_device()), Box::new(buffered)];
        for out in outputs {
            let (writer, guard) = NonBlockingWriter::start("test", out);
            writer.give("one\ntwo\n".to_owned());
            drop(guard);
            assert_eq!((writer.written(), writer.dropped()), (0, 2));
        }
        let (writer, guard) = NonBlockingWriter::start("test", io::sink());
        writer.give("one\ntwo\n".to_owned());
        drop(guard);
        assert_eq!((writer.written(), writer.dropped()), (2, 0));
    }

    #[test]
    fn a_stalled_reader_loses_lines() {
        let ((writes_sender, _writes), (gate_sender, gate)) = (channel(), channel());
        let out = GatedWriter {
            writes: writes_sender,
            gate,
        };
        let (writer, guard) = NonBlockingWriter::start("test", out);
        let line = format!("{}\n", "x".repeat(1 << 19));
        (0..40).for_each(|_| writer.give(line.repeat(2)));
        // The thread has taken up to 8 MiB of lines, and the queue holds up to 8 MiB. All other lines are
        // dropped.
        assert!(writer.dropped() >= 80 - 4 * 8, "{}", writer.dropped());
        drop(gate_sender);
        drop(guard);
    }
}
