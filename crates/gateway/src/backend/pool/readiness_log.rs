//! Logs the start and the end of each period in which no backend can get requests.

use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::mutex::lock;

/// Logs the start and the end of each period without an available backend.
#[derive(Debug, Default)]
pub(super) struct ReadinessLog {
    /// Whether the start of a period without an available backend was logged, but not its end. Requests read
    /// this flag, so that they do not wait for the lock that is held while a log line is written.
    pub(super) is_unready: AtomicFlag,
    state: Mutex<ReadinessLogState>,
}

#[derive(Debug, Default)]
struct ReadinessLogState {
    /// Whether a backend was available at any time since the start of the gateway.
    has_been_ready: bool,
    /// Start of the logged period without an available backend. `None`: no start was logged, or the
    /// end was logged.
    unready_since: Option<Instant>,
    /// Time since which a backend is available again. `None`: no backend is available.
    ready_since: Option<Instant>,
}

/// How long a backend must be available before the end of the period is logged. Without this time, each failed
/// probe of an ejected backend would log an end and a start.
const READY_QUIET_PERIOD: Duration = Duration::from_secs(5);

impl ReadinessLog {
    /// Records whether a backend is available at `now`. Logs nothing while `is_known` is false, which is so
    /// until the first health checks have completed. `states` is a summary of the states of all backends.
    /// Returns `true` if the start of a period without an available backend was logged, `false` if its end was
    /// logged, and `None` if nothing was logged.
    pub(super) fn record(
        &self,
        is_ready: bool,
        is_known: bool,
        states: impl FnOnce() -> String,
        now: Instant,
    ) -> Option<bool> {
        let mut state = lock(&self.state);
        if !is_ready {
            state.ready_since = None;
            let is_known = state.has_been_ready || is_known;
            if state.unready_since.is_some() || !is_known {
                return None;
            }
            state.unready_since = Some(now);
            self.is_unready.set(true);
            let states = states();
            tracing::warn!(
                states,
                "no backend is available: requests wait for one or are answered with 503"
            );
            return Some(true);
        }
        state.has_been_ready = true;
        let began_at = state.unready_since?;
        let ready_since = *state.ready_since.get_or_insert(now);
        if now.saturating_duration_since(ready_since) < READY_QUIET_PERIOD {
            return None;
        }
        state.unready_since = None;
        self.is_unready.set(false);
        let seconds = ready_since.saturating_duration_since(began_at).as_secs();
        let states = states();
        tracing::info!(
            seconds,
            states,
            "a backend is available again: requests are served"
        );
        Some(false)
    }
}
