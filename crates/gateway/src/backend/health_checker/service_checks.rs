//! Detects backends that pass `/health` but serve no requests: the engine seems stuck, is paused or sleeps, or
//! the backend answers 503 to everything else.

use super::HealthChecker;
use crate::backend::Health;
use crate::backend::backend::BUSY_TIME;
use crate::backend::state::DownCause;
use http::StatusCode;
use std::time::Duration;

/// Number of consecutive scrapes with 503 after which the model list is requested. If its status is also 503,
/// the backend is down.
const UNAVAILABLE_THRESHOLD: u32 = 2;
/// The path of vLLM's developer mode that reports a paused engine, and the field in its response. The gateway
/// does not use `/is_sleeping`, which also returns true while the engine is paused. The metrics show whether
/// the engine sleeps.
const PAUSE_PATH: (&str, &str) = ("/is_paused", "is_paused");
/// Multiple of `circuit_breaker.stuck_after` after which the requests of an engine without progress may fail
/// over.
const FAILOVER_STANDSTILL_FACTOR: u32 = 3;

impl HealthChecker {
    /// Marks the backend down if its engine seems stuck, although `/health` passes. The engine is only
    /// suspected, because a long prefill can look alike. So open requests stay at the backend, and may fail
    /// over only after [`FAILOVER_STANDSTILL_FACTOR`] times the limit.
    pub(super) fn check_engine_progress(&mut self) {
        let Some((standstill, limit)) = self.excessive_standstill() else {
            return;
        };
        self.last_healthy_at = None;
        let seconds = limit.as_secs_f64();
        let reason = format!("engine has requests and showed no progress for {seconds} s");
        self.backend.set_down(DownCause::Stuck, &reason);
        let may_fail_over = standstill >= limit.saturating_mul(FAILOVER_STANDSTILL_FACTOR);
        self.backend.health.set_declared_down(may_fail_over);
    }

    /// Marks the backend down if it answers 503 to everything but `/health` and no request shows that it works.
    /// An engine answers so while its number of ranks changes, or after its rank was removed. The open requests
    /// stay at the backend. Returns `true` if the backend was marked down.
    pub(super) fn check_availability(&mut self) -> bool {
        let Some(cause) = self.metrics_page.unavailable() else {
            self.unavailable_scrapes = 0;
            return false;
        };
        self.unavailable_scrapes = self.unavailable_scrapes.saturating_add(1);
        if self.unavailable_scrapes < UNAVAILABLE_THRESHOLD {
            // The model list shows whether the backend answers 503 to other requests too.
            self.models.expire();
            self.interval = self.context.settings.min_interval;
            return false;
        }
        if !self.models.is_unavailable() || self.backend.has_output_since(BUSY_TIME) {
            return false;
        }
        self.last_healthy_at = None;
        let reason = match cause {
            DownCause::Scaling => "it answers 503 to all requests but /health: it scales",
            DownCause::Retired => "it answers 503 to all requests but /health: it was retired",
            _ => "it answers 503 to all requests but /health: it scales, or was retired",
        };
        self.backend.set_down(cause, reason);
        true
    }

    /// Asks vLLM whether its engine is paused. Only vLLM in developer mode answers, and each answer costs the
    /// engine one step. So the gateway asks with each health check, and more often only while the engine is
    /// paused or stands still. The gateway does not ask a server whose metrics page has no sleep state, because
    /// that server could take the unknown path for an inference request.
    pub(super) async fn check_pause(&mut self) {
        let state = self.backend.health.state();
        let reports_awake = state
            .sample
            .is_some_and(|sample| sample.load.awake.is_some());
        if self.findings.hides_pause || !reports_awake {
            return;
        }
        let (path, field) = PAUSE_PATH;
        let Ok((status, body)) = self.fetcher.get(path).await else {
            return;
        };
        if status.is_server_error() {
            return;
        }
        let answer = if status == StatusCode::OK {
            body
        } else {
            b"null"
        };
        let answer = serde_json::from_slice::<serde_json::Value>(answer).unwrap_or_default();
        let is_paused = answer.get(field).and_then(serde_json::Value::as_bool);
        self.findings.hides_pause = is_paused.is_none();
        let is_paused = is_paused == Some(true);
        if is_paused != state.is_paused {
            self.backend
                .update_state(|state| state.is_paused = is_paused);
        }
    }

    /// Whether the gateway asks if the engine is paused even though `/health` passed a moment ago.
    pub(super) fn is_pause_likely(&self) -> bool {
        !self.findings.hides_pause
            && (self.backend.health.state().is_paused
                || self.engine_progress.standstill_duration() > Duration::ZERO)
    }

    /// Logs when the engine of a backend that is up is asleep or paused, and when it works again.
    pub(super) fn log_rest(&mut self) {
        let state = self.backend.health.state();
        if state.health != Health::Up {
            return;
        }
        let rests = state.engine_availability();
        let backend = &self.backend.identity.id;
        match (std::mem::replace(&mut self.logged_rest, rests), rests) {
            (before, now) if before == now => {}
            (_, Some(word)) => {
                let state = word.as_str();
                tracing::info!(%backend, state, "the engine of the backend cannot serve in this state: it gets no new requests");
            }
            (Some(_), None) => {
                tracing::info!(%backend, "the engine of the backend works again: it gets requests");
            }
            (None, None) => {}
        }
    }

    /// The time without progress of the engine, and the limit `circuit_breaker.stuck_after`. `None`: the time
    /// is below the limit, the engine is paused, or there is no limit.
    pub(super) fn excessive_standstill(&self) -> Option<(Duration, Duration)> {
        // A paused engine makes no progress on purpose.
        if self.backend.health.state().is_paused {
            return None;
        }
        let limit = self.backend.health.breaker.settings().stuck_after?;
        let standstill = self.engine_progress.standstill_duration();
        (standstill >= limit).then_some((standstill, limit))
    }
}
