//! The file descriptors that connections of clients and connections to backends share.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The file descriptors that are left. Clones are the same.
#[derive(Debug, Clone)]
pub struct Descriptors {
    all: Arc<Semaphore>,
    /// Those of `all` that connections for watching backends may have.
    watchers: Arc<Semaphore>,
}

/// One file descriptor, until this is dropped.
pub type Descriptor = OwnedSemaphorePermit;

/// The file descriptor of a connection for watching a backend.
#[derive(Debug)]
pub struct WatchDescriptor {
    _descriptor: Descriptor,
    _watcher: OwnedSemaphorePermit,
}

/// Watchers have one in so many of the descriptors at most.
const WATCHERS_SHARE: usize = 4;

/// How many descriptors watching takes, of so many in all. With more backends their watchers take
/// turns.
pub fn for_watching(backends: usize, all: usize) -> usize {
    backends.min((all / WATCHERS_SHARE).max(1))
}

impl Default for Descriptors {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Descriptors {
    /// So many descriptors. `None`: no limit.
    pub fn new(most: Option<usize>) -> Self {
        let most = most.unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS);
        let watchers = for_watching(usize::MAX, most);
        Self { all: Arc::new(Semaphore::new(most)), watchers: Arc::new(Semaphore::new(watchers)) }
    }

    /// A descriptor, if there is one now.
    pub fn take(&self) -> Option<Descriptor> {
        self.all.clone().try_acquire_owned().ok()
    }

    /// A descriptor for watching, if there is one within `patience`. Those who wait go before those
    /// who [take](Self::take), so that backends are watched under any load.
    pub async fn take_for_watching(&self, patience: Duration) -> Option<WatchDescriptor> {
        let taking = async {
            let watcher = self.watchers.clone().acquire_owned().await.ok()?;
            let descriptor = self.all.clone().acquire_owned().await.ok()?;
            Some(WatchDescriptor { _descriptor: descriptor, _watcher: watcher })
        };
        tokio::time::timeout(patience, taking).await.ok().flatten()
    }

    /// Whether connections for watching can be kept open between two looks.
    pub fn has_room_for_watching(&self) -> bool {
        self.watchers.available_permits() > 0 && self.all.available_permits() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn watching_has_a_share_and_waits_for_a_descriptor_for_a_while() {
        let descriptors = Descriptors::new(Some(8));
        let watching = [
            descriptors.take_for_watching(PATIENCE).await.unwrap(),
            descriptors.take_for_watching(PATIENCE).await.unwrap(),
        ];
        assert!(!descriptors.has_room_for_watching());
        assert!(descriptors.take_for_watching(PATIENCE).await.is_none(), "a quarter");
        drop(watching);
        let mut taken: Vec<_> = std::iter::from_fn(|| descriptors.take()).collect();
        assert_eq!(taken.len(), 8);
        assert!(descriptors.take_for_watching(PATIENCE).await.is_none(), "all are in use");
        let waiting = descriptors.clone();
        let waiting = tokio::spawn(async move { waiting.take_for_watching(PATIENCE).await });
        tokio::task::yield_now().await;
        taken.pop();
        assert!(descriptors.take().is_none(), "the one who waits goes first");
        assert!(waiting.await.unwrap().is_some());
    }
}
