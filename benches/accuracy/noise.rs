//! Measures the noise of the machine: the wake-up delays of a thread that only sleeps. No measured time can be
//! more accurate than these delays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokenweir_protocol::clock;

/// A running measurement of wake-up delays.
pub(crate) struct Noise {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<f64>>,
}

const NAP: Duration = Duration::from_millis(2);

impl Noise {
    pub(crate) fn listen() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let thread = thread::spawn(move || {
            let mut late = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let before = clock::now();
                thread::sleep(NAP);
                let took = clock::now().saturating_duration_since(before);
                late.push(took.saturating_sub(NAP).as_secs_f64() * 1e3);
            }
            late
        });
        Self { is_over, thread }
    }

    /// Stops the measurement. Returns the wake-up delays in milliseconds.
    pub(crate) fn end(self) -> Vec<f64> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}
