//! Writes log lines in batches from a thread of its own, so that a slow reader never blocks a
//! worker thread. Lines beyond the buffer are dropped and counted.

use super::batch_worker::BatchWorkerGuard;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokenweir_core::batch_queue::BatchQueue;
use tokenweir_net::supervise::{self, BackgroundTask};

/// Queues lines. Clones share one writer thread.
#[derive(Clone)]
pub(crate) struct NonBlockingWriter(Arc<NonBlockingWriterState>);

/// The writer thread. Dropping it waits until the remaining lines are written, but at most 1 s.
pub(crate) type NonBlockingWriterGuard = BatchWorkerGuard;

struct NonBlockingWriterState {
    line_queue: Arc<BatchQueue<String>>,
    dropped_lines: AtomicU64,
}

/// How long the first line waits for others.
const BATCH_LINGER: Duration = Duration::from_millis(100);
/// Most queued bytes. Lines beyond it are dropped.
const MAX_QUEUED_BYTES: usize = 8 << 20;
/// Longest wait for the writer thread at shutdown, in case the reader does not read.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

// === impl NonBlockingWriter ===

impl NonBlockingWriter {
    /// Starts a thread that writes to `out`. Each queued text is one write. `out` is flushed when
    /// the queue is empty.
    pub(crate) fn start(mut out: impl Write + Send + 'static) -> (Self, NonBlockingWriterGuard) {
        let line_queue = Arc::new(BatchQueue::new(BATCH_LINGER, MAX_QUEUED_BYTES));
        let dropped_lines = AtomicU64::new(0);
        let state =
            Arc::new(NonBlockingWriterState { line_queue: line_queue.clone(), dropped_lines });
        let writer = Self(state.clone());
        let write = move |_: &_| state.write_queued_lines(&mut out);
        (writer, BatchWorkerGuard::start(line_queue, SHUTDOWN_TIMEOUT, write))
    }

    /// Queues one line or more, each with its line ending.
    pub(crate) fn give(&self, lines: String) {
        let bytes = lines.len();
        if let Err(lines) = self.0.line_queue.push(lines, bytes) {
            self.0.dropped_lines.fetch_add(lines.lines().count() as u64, Ordering::Relaxed);
        }
    }

    /// Number of lines dropped because the queue was full or the writer panicked.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.dropped_lines.load(Ordering::Relaxed)
    }
}

impl NonBlockingWriterState {
    fn write_queued_lines(&self, out: &mut impl Write) {
        for lines in self.line_queue.take_batch() {
            // A closed output is not an error that could be handled: the lines are discarded.
            let write = || drop(out.write_all(lines.as_bytes()));
            if supervise::catch_panic(BackgroundTask::LogWriter, write).is_none() {
                self.dropped_lines.fetch_add(lines.lines().count() as u64, Ordering::Relaxed);
            }
        }
        supervise::catch_panic(BackgroundTask::LogWriter, || drop(out.flush()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, BufWriter};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Sends each write to a channel. Waits at a gate before each write.
    struct GatedWriter(Sender<String>, Receiver<()>);

    impl Write for GatedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // A gate without a sender is open.
            let _ = self.1.recv();
            self.0.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_batched_in_order_and_all_written_at_shutdown() {
        let ((writes_sender, writes), (_, gate)) = (channel(), channel());
        let out = BufWriter::new(GatedWriter(writes_sender, gate));
        let (writer, guard) = NonBlockingWriter::start(out);
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
    fn stalled_reader_drops_lines_without_blocking_callers() {
        let ((writes_sender, _writes), (gate_sender, gate)) = (channel(), channel());
        let (writer, guard) = NonBlockingWriter::start(GatedWriter(writes_sender, gate));
        let line = format!("{}\n", "x".repeat(1 << 19));
        (0..40).for_each(|_| writer.give(line.repeat(2)));
        // Up to 8 MiB are with the thread and up to 8 MiB are queued.
        assert!(writer.dropped() >= 80 - 4 * 8, "{}", writer.dropped());
        drop(gate_sender);
        drop(guard);
    }
}
