//! Ends answers that their clients do not take. The server does not ask for more of an answer while
//! its client takes nothing, so nothing in the answer itself can notice: whoever carries it holds
//! its leash, and is woken when that is pulled.

use futures_util::task::AtomicWaker;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// What an answer, or all answers of a connection, can be ended by. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Leash(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_pulled: AtomicBool,
    waker: AtomicWaker,
    /// That of the connection that a stream is on.
    above: Option<Leash>,
    /// Times count from then.
    epoch: Option<Instant>,
    /// Nanoseconds from there to when the client was given something; 0: it asks for more.
    given: AtomicU64,
}

/// The leashes of all streams that share a connection with others.
#[derive(Debug)]
pub struct Leashes {
    epoch: Instant,
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    next: u64,
    open: BTreeMap<u64, Leash>,
}

/// A place among them, until it is dropped.
#[derive(Debug)]
pub struct Leashed {
    leashes: Arc<Leashes>,
    key: u64,
    leash: Leash,
}

// === impl Leash ===

impl Leash {
    /// Ends it.
    pub fn pull(&self) {
        self.0.is_pulled.store(true, Ordering::Release);
        self.0.waker.wake();
    }

    /// Whether it, or that of its connection, has been pulled.
    pub fn is_pulled(&self) -> bool {
        let Inner { is_pulled, above, .. } = &*self.0;
        is_pulled.load(Ordering::Acquire) || above.as_ref().is_some_and(Self::is_pulled)
    }

    /// The same; `waker` is woken when it is pulled.
    pub fn is_pulled_now(&self, waker: &Waker) -> bool {
        self.0.waker.register(waker);
        self.is_pulled()
    }

    /// The client was given something.
    pub fn give(&self, now: Instant) {
        if let Some(epoch) = self.0.epoch {
            let since = now.saturating_duration_since(epoch).as_nanos() as u64;
            self.0.given.store(since.max(1), Ordering::Relaxed);
        }
    }

    /// It asks for more.
    pub fn take(&self) {
        if self.0.epoch.is_some() {
            self.0.given.store(0, Ordering::Relaxed);
        }
    }

    fn untaken(&self, now: Instant) -> Option<Duration> {
        let given = self.0.given.load(Ordering::Relaxed);
        let epoch = self.0.epoch.filter(|_| given > 0)?;
        Some(now.saturating_duration_since(epoch + Duration::from_nanos(given)))
    }
}

// === impl Leashes ===

impl Leashes {
    /// None yet. Times are kept from `epoch` on.
    pub fn new(epoch: Instant) -> Arc<Self> {
        Arc::new(Self { epoch, streams: Mutex::default() })
    }

    /// One for a stream of the connection that has the leash `above`.
    pub fn stream(self: &Arc<Self>, above: &Leash) -> Leashed {
        let above = Some(above.clone());
        let leash = Leash(Arc::new(Inner { above, epoch: Some(self.epoch), ..Inner::default() }));
        let mut streams = self.streams();
        let key = streams.next;
        streams.next += 1;
        streams.open.insert(key, leash.clone());
        Leashed { leashes: self.clone(), key, leash }
    }

    /// Pulls those of streams whose clients have taken nothing for as long.
    pub fn sweep(&self, now: Instant, limit: Duration) {
        let streams: Vec<Leash> = {
            let streams = self.streams();
            let is_due = |leash: &&Leash| leash.untaken(now).is_some_and(|time| time >= limit);
            streams.open.values().filter(is_due).cloned().collect()
        };
        streams.iter().for_each(Leash::pull);
    }

    fn streams(&self) -> std::sync::MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leashed {
    /// The leash.
    pub fn leash(&self) -> &Leash {
        &self.leash
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        self.leashes.streams().open.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const LIMIT: Duration = Duration::from_mins(1);

    #[test]
    fn a_stream_is_ended_when_its_client_has_taken_nothing_for_the_limit() {
        let epoch = clock::now();
        let leashes = Leashes::new(epoch);
        let [slow, fast, waiting] = [(); 3].map(|()| leashes.stream(&Leash::default()));
        let given = epoch + Duration::from_secs(5);
        slow.leash().give(given);
        fast.leash().give(given);
        fast.leash().take();
        leashes.sweep(given + (LIMIT / 2), LIMIT);
        assert!(!slow.leash().is_pulled());
        leashes.sweep(given + LIMIT, LIMIT);
        let pulled = [&slow, &fast, &waiting].map(|each| each.leash().is_pulled());
        assert_eq!(pulled, [true, false, false]);
        drop((slow, fast, waiting));
        assert!(leashes.streams().open.is_empty());
    }

    #[test]
    fn what_ends_a_connection_ends_its_streams() {
        let connection = Leash::default();
        let stream = Leashes::new(clock::now()).stream(&connection);
        // A connection has no times of its own: its socket is looked at.
        connection.give(clock::now());
        assert!(!stream.leash().is_pulled());
        connection.pull();
        assert!(stream.leash().is_pulled());
    }
}
