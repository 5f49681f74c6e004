//! Backends that pass `/health` and serve no requests: their engine seems stuck, or they answer 503
//! to everything else.

use super::{HealthChecker, UNHEALTHY_THRESHOLD};
use crate::backend::Health;
use std::sync::Arc;
use std::time::Duration;

/// Multiple of `circuit_breaker.stuck_after` after which the requests at an engine without progress
/// may fail over.
const FAILOVER_STANDSTILL_FACTOR: u32 = 3;

impl HealthChecker {
    /// Marks the backend down if its engine seems stuck, although `/health` passes. This is a
    /// suspicion: a long prefill may look the same. So the open requests stay at the backend, and
    /// may fail over only after [`FAILOVER_STANDSTILL_FACTOR`] times the limit.
    pub(super) fn check_engine_progress(&mut self) {
        let Some((standstill, limit)) = self.excessive_standstill() else { return };
        self.last_healthy_at = None;
        let seconds = limit.as_secs_f64();
        let reason = format!("engine has requests and showed no progress for {seconds} s");
        let reason: Arc<str> = reason.into();
        self.backend.update_state(|state| state.suspect(&reason));
        self.backend.health.log_down(&self.backend.identity.id, &reason);
        let may_fail_over = standstill >= limit.saturating_mul(FAILOVER_STANDSTILL_FACTOR);
        self.backend.health.set_declared_down(may_fail_over);
    }

    /// Marks the backend down if it answers 503 to all requests but `/health`, as an engine does that
    /// scales or was retired. Its open requests stay. Returns whether it is so.
    pub(super) fn check_availability(&mut self) -> bool {
        if !self.metrics_page.is_unavailable() {
            self.unavailable_scrapes = 0;
            return false;
        }
        self.unavailable_scrapes = self.unavailable_scrapes.saturating_add(1);
        if self.unavailable_scrapes < UNHEALTHY_THRESHOLD {
            // The model list shows whether the backend answers 503 to other requests too.
            self.models.expire();
            return false;
        }
        if !self.models.is_unavailable() {
            return false;
        }
        self.last_healthy_at = None;
        let reason = "it answers 503 to all requests but /health: it scales, or was retired";
        let text: Arc<str> = reason.into();
        self.backend.update_state(|state| state.set_health(Health::Down, Some(&text)));
        self.backend.health.log_down(&self.backend.identity.id, reason);
        true
    }

    /// How long the engine has been stuck, if at least for `circuit_breaker.stuck_after`, and that
    /// limit.
    pub(super) fn excessive_standstill(&self) -> Option<(Duration, Duration)> {
        let limit = self.backend.health.breaker.settings().stuck_after?;
        let standstill = self.engine_progress.standstill_duration();
        (standstill >= limit).then_some((standstill, limit))
    }
}
