//! Lines that are written together, by a thread of its own. Whoever gives some goes on at once, and
//! a reader that is too slow costs lines, never time.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use tokenweir_core::gather::Gatherer;
use tokenweir_net::supervise::{self, Task};

/// Takes lines. Clones give to the same writer.
#[derive(Clone)]
pub(crate) struct Batched(Arc<Shared>);

/// The thread that writes. Dropping it waits until what is left has been written, but not for a
/// reader that does not read.
pub(crate) struct Writing {
    shared: Arc<Shared>,
    ended: Receiver<()>,
}

struct Shared {
    lines: Gatherer<String>,
    dropped: AtomicU64,
}

/// How long the first line waits for others.
const TOGETHER: Duration = Duration::from_millis(100);
/// Bytes that wait for a slow reader; what is more is dropped.
const ROOM: usize = 8 << 20;
/// How long the end waits for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(1);

// === impl Batched ===

impl Batched {
    /// Writes to `out` from a thread of its own: all that is given at once in one piece, and
    /// flushed when nothing more waits.
    pub(crate) fn start(mut out: impl Write + Send + 'static) -> (Self, Writing) {
        let lines = Gatherer::new(TOGETHER, ROOM);
        let shared = Arc::new(Shared { lines, dropped: AtomicU64::new(0) });
        let (ending, ended) = channel();
        let of_thread = shared.clone();
        thread::spawn(move || {
            of_thread.run(&mut out);
            // Nobody may wait for it any more.
            let _ = ending.send(());
        });
        (Self(shared.clone()), Writing { shared, ended })
    }

    /// Gives one line or more, each with its ending.
    pub(crate) fn give(&self, lines: String) {
        let bytes = lines.len();
        if let Err(lines) = self.0.lines.give(lines, bytes) {
            self.0.dropped.fetch_add(lines.lines().count() as u64, Ordering::Relaxed);
        }
    }

    /// Lines for which there was no room.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn run(&self, out: &mut impl Write) {
        while self.lines.wait() {
            self.write_to(out);
        }
        self.write_to(out);
    }

    fn write_to(&self, out: &mut impl Write) {
        for lines in self.lines.take() {
            // A reader that has gone is nobody's fault, and lines are not worth ending for.
            let write = || drop(out.write_all(lines.as_bytes()));
            if supervise::catch(Task::LogWriter, write).is_none() {
                self.dropped.fetch_add(lines.lines().count() as u64, Ordering::Relaxed);
            }
        }
        supervise::catch(Task::LogWriter, || drop(out.flush()));
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.shared.lines.end();
        // It has ended, or its reader does not read.
        let _ = self.ended.recv_timeout(PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, BufWriter};
    use std::sync::mpsc::Sender;

    /// Tells what is written, and waits at a gate before it.
    struct Told(Sender<String>, Receiver<()>);

    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // A gate whose keeper has gone is open.
            let _ = self.1.recv();
            self.0.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_written_together_in_their_order_and_none_is_lost_at_the_end() {
        let ((tell, told), (_, gate)) = (channel(), channel());
        let (batched, writing) = Batched::start(BufWriter::new(Told(tell, gate)));
        let lines: Vec<String> = (0..1_000).map(|number| format!("{number}\n")).collect();
        for line in &lines {
            batched.give(line.clone());
        }
        drop(writing);
        let written: Vec<String> = told.try_iter().collect();
        assert_eq!(written.concat(), lines.concat());
        assert!(written.len() < 10, "{} writes", written.len());
        assert_eq!(batched.dropped(), 0);
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_and_nobody_waits() {
        let ((tell, _told), (keeper, gate)) = (channel(), channel());
        let (batched, writing) = Batched::start(Told(tell, gate));
        let line = format!("{}\n", "x".repeat(1 << 19));
        (0..40).for_each(|_| batched.give(line.repeat(2)));
        // Up to 8 MiB with the thread, up to 8 MiB that wait.
        assert!(batched.dropped() >= 80 - 4 * 8, "{}", batched.dropped());
        drop(keeper);
        drop(writing);
    }
}
