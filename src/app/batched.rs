//! Lines that are written together. Whoever gives one copies it and goes on; a thread of its own
//! takes what has come every 50 ms. A thread that were woken for each line would cost several
//! times what a line costs.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Takes lines. Clones give to the same writer.
#[derive(Clone)]
pub(super) struct Batched(Arc<Shared>);

/// The thread that writes. Dropping it waits until what is left has been written, but not for a
/// reader that does not read.
pub(super) struct Writing {
    shared: Arc<Shared>,
    ended: Receiver<()>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    /// The first line has come, or it is over.
    told: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    text: String,
    is_over: bool,
}

/// How long the first line waits for others.
const TOGETHER: Duration = Duration::from_millis(50);
/// Bytes that wait for a slow reader; what is more is dropped.
const ROOM: usize = 8 << 20;
/// How long the end waits for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(1);

// === impl Batched ===

impl Batched {
    /// Writes to `out` from a thread of its own.
    pub(super) fn start(mut out: impl Write + Send + 'static) -> (Self, Writing) {
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            told: Condvar::new(),
            dropped: AtomicU64::new(0),
        });
        let (ending, ended) = channel();
        let of_thread = shared.clone();
        thread::spawn(move || {
            of_thread.write_to(&mut out);
            // Nobody may wait for it any more.
            let _ = ending.send(());
        });
        (Self(shared.clone()), Writing { shared, ended })
    }

    /// Gives a line with its ending.
    pub(super) fn give(&self, line: &str) {
        let mut waiting = self.0.waiting();
        if waiting.text.len() + line.len() > ROOM {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let is_first = waiting.text.is_empty();
        waiting.text.push_str(line);
        drop(waiting);
        if is_first {
            self.0.told.notify_one();
        }
    }

    /// Lines for which there was no room.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, out: &mut impl Write) {
        let mut batch = String::new();
        loop {
            let is_quiet = |waiting: &mut Waiting| waiting.text.is_empty() && !waiting.is_over;
            let waiting = self.told.wait_while(self.waiting(), is_quiet);
            let waiting = waiting.unwrap_or_else(PoisonError::into_inner);
            let more = self.told.wait_timeout_while(waiting, TOGETHER, |waiting| !waiting.is_over);
            let (mut waiting, _) = more.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut waiting.text, &mut batch);
            let is_over = waiting.is_over;
            drop(waiting);
            // A reader that has gone is nobody's fault, and lines are not worth ending for.
            let _ = out.write_all(batch.as_bytes()).and_then(|()| out.flush());
            batch.clear();
            batch.shrink_to(ROOM / 8);
            if is_over {
                return;
            }
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.shared.waiting().is_over = true;
        self.shared.told.notify_one();
        // It has ended, or its reader does not read.
        let _ = self.ended.recv_timeout(PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
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
        let (batched, writing) = Batched::start(Told(tell, gate));
        let lines: Vec<String> = (0..1_000).map(|number| format!("{number}\n")).collect();
        for line in &lines {
            batched.give(line);
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
        let line = format!("{}\n", "x".repeat(1 << 20));
        (0..40).for_each(|_| batched.give(&line));
        // Up to 8 MiB with the thread, up to 8 MiB that wait.
        assert!(batched.dropped() >= 40 - 2 * 8, "{}", batched.dropped());
        drop(keeper);
        drop(writing);
    }
}
