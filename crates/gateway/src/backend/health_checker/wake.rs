//! The wait between two health checks of a backend, and the events that end it early.

use crate::backend::Backend;
use std::time::Duration;

/// The event that ended the wait for the next health check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    IntervalElapsed,
    /// The backend was idle and got a request.
    FirstRequest,
    /// A request to the backend failed, which requests a health check.
    RequestFailed,
}

/// Waits for `interval`. A request to the idle backend ends the wait after `first_request_delay`. A failed
/// request to the backend ends it at once.
pub(super) async fn wait_next_check(
    backend: &Backend,
    interval: Duration,
    first_request_delay: Duration,
) -> WakeReason {
    let first_request = async {
        backend.load.wait_first_request().await;
        tokio::time::sleep(first_request_delay).await;
    };
    // `biased`: if several events have happened, the first branch decides the reason.
    tokio::select! {
        biased;
        () = backend.health.wait_check_requested() => WakeReason::RequestFailed,
        () = tokio::time::sleep(interval) => WakeReason::IntervalElapsed,
        () = first_request => WakeReason::FirstRequest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Lease;
    use std::sync::Arc;
    use tokenweir_engine::address::{BackendAddress, BackendId};
    use tokenweir_protocol::clock;

    const INTERVAL: Duration = Duration::from_secs(5);
    const FIRST_REQUEST_DELAY: Duration = Duration::from_millis(100);

    fn backend(name: &str) -> Backend {
        Backend::new(
            BackendId::new(name),
            BackendAddress::parse("http://a:1").unwrap(),
            None,
        )
    }

    fn lease(backend: &Arc<Backend>) -> Lease {
        let now = clock::now();
        let prompt = Arc::default();
        let candidate = backend.candidate(&prompt, None, clock::nanos(now)).unwrap();
        Lease::new(backend.clone(), &candidate, &prompt, true, now)
    }

    /// Waits for a health check while `event` happens after one second. Returns the reason for the end of the
    /// wait, and its length.
    async fn measure_wait(event: impl FnOnce(&Arc<Backend>)) -> (WakeReason, Duration) {
        let backend = Arc::new(backend("a"));
        let started_at = clock::now();
        let delayed_event = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            event(&backend);
        };
        let (reason, ()) = tokio::join!(
            wait_next_check(&backend, INTERVAL, FIRST_REQUEST_DELAY),
            delayed_event
        );
        (reason, clock::now() - started_at)
    }

    #[tokio::test(start_paused = true)]
    async fn first_and_failed_requests_cause_checks() {
        assert_eq!(
            measure_wait(|_| {}).await,
            (WakeReason::IntervalElapsed, INTERVAL)
        );
        let first = measure_wait(|backend| drop(lease(backend))).await;
        assert_eq!(
            first,
            (
                WakeReason::FirstRequest,
                Duration::from_secs(1) + FIRST_REQUEST_DELAY
            )
        );
        let failed = measure_wait(|backend| backend.mark_down("refused")).await;
        assert_eq!(failed, (WakeReason::RequestFailed, Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_request_ends_the_wait() {
        let backend = Arc::new(backend("a"));
        let wait = || wait_next_check(&backend, INTERVAL, FIRST_REQUEST_DELAY);
        let first = lease(&backend);
        assert_eq!(wait().await, WakeReason::FirstRequest);
        let second = lease(&backend);
        assert_eq!(wait().await, WakeReason::IntervalElapsed);
        drop((first, second));
        // Requests between two waits end the next wait.
        (0..2).for_each(|_| drop(lease(&backend)));
        assert_eq!(wait().await, WakeReason::FirstRequest);
        assert_eq!(wait().await, WakeReason::IntervalElapsed);
    }
}
