//! What ends the pause between two looks at a replica.

use super::Backend;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Why a pause ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// It was over.
    Time,
    /// An idle replica got a request.
    Work,
    /// A request failed.
    Failure,
}

/// Waits for `pause`, or for less: no more than `short` from when the replica gets its first
/// request, and not at all when one fails.
pub(super) async fn wait(backend: &Backend, pause: Duration, short: Duration) -> Wake {
    let work = async {
        backend.first_request.notified().await;
        backend.is_told_of_work.store(false, Ordering::Relaxed);
        tokio::time::sleep(short).await;
    };
    tokio::select! {
        () = tokio::time::sleep(pause) => Wake::Time,
        () = work => Wake::Work,
        () = backend.look_again.notified() => Wake::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Lease;
    use std::sync::Arc;
    use tokenweir_core::address::Address;
    use tokenweir_core::clock;
    use tokenweir_core::routing::Prompt;

    const PAUSE: Duration = Duration::from_secs(5);
    const SHORT: Duration = Duration::from_millis(100);

    fn backend() -> Arc<Backend> {
        let address = Address::parse("http://127.0.0.1:9").unwrap();
        Arc::new(Backend::new(address.default_id(), address, None))
    }

    fn lease(backend: &Arc<Backend>) -> Lease {
        let (prompt, now) = (Prompt::default(), clock::now());
        Lease::new(backend.clone(), &backend.candidate(&prompt, now), &prompt, true, now)
    }

    /// How a pause ended and how long it was, if this happens after a second of it.
    async fn paused(happens: impl FnOnce(&Arc<Backend>)) -> (Wake, Duration) {
        let (backend, begun) = (backend(), clock::now());
        let happening = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            happens(&backend);
        };
        let (wake, ()) = tokio::join!(wait(&backend, PAUSE, SHORT), happening);
        (wake, clock::now() - begun)
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_soon_after_the_first_request_and_at_once_after_a_failed_one() {
        assert_eq!(paused(|_| {}).await, (Wake::Time, PAUSE));
        let work = paused(|backend| drop(lease(backend))).await;
        assert_eq!(work, (Wake::Work, Duration::from_secs(1) + SHORT));
        let failure = paused(|backend| backend.suspect("refused")).await;
        assert_eq!(failure, (Wake::Failure, Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_of_several_requests_ends_a_pause_and_the_first_after_an_idle_time_again()
     {
        let backend = backend();
        let first = lease(&backend);
        assert_eq!(wait(&backend, PAUSE, SHORT).await, Wake::Work);
        let second = lease(&backend);
        assert_eq!(wait(&backend, PAUSE, SHORT).await, Wake::Time);
        drop((first, second));
        // One that comes between two pauses ends the next.
        drop(lease(&backend));
        assert_eq!(wait(&backend, PAUSE, SHORT).await, Wake::Work);
        assert_eq!(wait(&backend, PAUSE, SHORT).await, Wake::Time);
    }
}
