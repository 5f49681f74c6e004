//! Word that a place may have become free at a replica, for whoever waits for one. While nobody
//! does, it costs a fence and a load.
//!
//! Whoever frees a place changes the counts first and looks for listeners then; whoever waits says
//! so first and looks for a place then. The fences keep that order, so one of the two sees the
//! other, and no word is lost.

use std::sync::atomic::{AtomicUsize, Ordering, fence};
use tokio::sync::Notify;

/// The word, shared by all replicas of a pool.
#[derive(Debug, Default)]
pub struct Vacancies {
    waiting: AtomicUsize,
    changed: Notify,
}

impl Vacancies {
    /// A place may have become free.
    pub fn tell(&self) {
        fence(Ordering::SeqCst);
        if self.waiting() > 0 {
            self.changed.notify_one();
        }
    }

    /// So many wait. To be said before a last look for a place.
    pub fn set_waiting(&self, waiting: usize) {
        self.waiting.store(waiting, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits until a place may have become free, since the last time that it was waited for.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
