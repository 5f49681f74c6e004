//! The pool of file descriptors that client connections and backend connections share.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The pool of file descriptors for connections. Clones share the pool.
#[derive(Debug, Clone)]
pub struct FileDescriptorPool {
    /// The free descriptors for all connections.
    permits: Arc<Semaphore>,
    /// The free descriptors of the share that health-check connections may use. A health-check connection needs
    /// a permit of both semaphores.
    probe_permits: Arc<Semaphore>,
}

/// The permit to use one file descriptor. Dropping it returns it to the pool.
#[derive(Debug)]
pub struct FileDescriptorPermit {
    _descriptor: OwnedSemaphorePermit,
    /// The permit of the share of health checks. `None`: the connection is not for health checks.
    _probe_permit: Option<OwnedSemaphorePermit>,
}

/// Health checks may use one in this number of descriptors.
const PROBE_SHARE_DIVISOR: usize = 4;

/// Maximum number of descriptors for health checks of `backends` backends, out of `total` descriptors. If there
/// are more backends than this maximum, health checks wait for free descriptors.
pub fn max_probe_descriptors(backends: usize, total: usize) -> usize {
    backends.min((total / PROBE_SHARE_DIVISOR).max(1))
}

impl Default for FileDescriptorPool {
    fn default() -> Self {
        Self::new(None)
    }
}

impl FileDescriptorPool {
    /// Creates a pool of `capacity` descriptors. `None`: the number is not limited.
    pub fn new(capacity: Option<usize>) -> Self {
        let capacity = capacity
            .unwrap_or(Semaphore::MAX_PERMITS)
            .min(Semaphore::MAX_PERMITS);
        let probe_capacity = max_probe_descriptors(usize::MAX, capacity);
        Self {
            permits: Arc::new(Semaphore::new(capacity)),
            probe_permits: Arc::new(Semaphore::new(probe_capacity)),
        }
    }

    /// Acquires a descriptor without waiting. `None`: no descriptor is free.
    pub fn try_acquire(&self) -> Option<FileDescriptorPermit> {
        let descriptor = self.permits.clone().try_acquire_owned().ok()?;
        Some(FileDescriptorPermit {
            _descriptor: descriptor,
            _probe_permit: None,
        })
    }

    /// Acquires a descriptor for a health-check connection. `None`: no descriptor became free
    /// within `timeout`. Waiting health checks precede [`try_acquire`](Self::try_acquire), so that
    /// backends are checked under any load.
    pub async fn acquire_for_probe(&self, timeout: Duration) -> Option<FileDescriptorPermit> {
        let acquiring = async {
            let probe_permit = Some(self.probe_permits.clone().acquire_owned().await.ok()?);
            let descriptor = self.permits.clone().acquire_owned().await.ok()?;
            Some(FileDescriptorPermit {
                _descriptor: descriptor,
                _probe_permit: probe_permit,
            })
        };
        tokio::time::timeout(timeout, acquiring)
            .await
            .ok()
            .flatten()
    }

    /// Whether health-check connections may stay open between two health checks: a descriptor is free, both in
    /// the pool and in the share of health checks.
    pub fn has_capacity_for_probes(&self) -> bool {
        self.probe_permits.available_permits() > 0 && self.permits.available_permits() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn probes_have_a_share_and_wait_for_it() {
        let descriptors = FileDescriptorPool::new(Some(8));
        let probes = [
            descriptors
                .acquire_for_probe(ACQUIRE_TIMEOUT)
                .await
                .unwrap(),
            descriptors
                .acquire_for_probe(ACQUIRE_TIMEOUT)
                .await
                .unwrap(),
        ];
        assert!(!descriptors.has_capacity_for_probes());
        assert!(
            descriptors
                .acquire_for_probe(ACQUIRE_TIMEOUT)
                .await
                .is_none(),
            "over the share"
        );
        drop(probes);
        let mut permits: Vec<_> = std::iter::from_fn(|| descriptors.try_acquire()).collect();
        assert_eq!(permits.len(), 8);
        assert!(
            descriptors
                .acquire_for_probe(ACQUIRE_TIMEOUT)
                .await
                .is_none(),
            "all are in use"
        );
        let waiting = descriptors.clone();
        let waiting = tokio::spawn(async move { waiting.acquire_for_probe(ACQUIRE_TIMEOUT).await });
        tokio::task::yield_now().await;
        permits.pop();
        assert!(
            descriptors.try_acquire().is_none(),
            "the waiting probe precedes"
        );
        assert!(waiting.await.unwrap().is_some());
    }
}
