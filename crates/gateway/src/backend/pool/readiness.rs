//! Computes the availability of each backend and the readiness of the gateway, for `/readyz`,
//! `/health`, `/status`, the metrics and the live views.

use super::panic_mode::{count_eligible_and_ejected, is_panic};
use super::readiness_log::ReadinessLog;
use super::snapshot::PoolSnapshot;
use crate::backend::Backend;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_routing::resilience::Availability;

/// The availability of all backends at one moment.
#[derive(Debug, Clone)]
pub struct Readiness {
    /// One entry per backend, by position.
    pub backends: Vec<BackendAvailability>,
    /// Whether panic mode ignores ejections, for at least one model.
    pub is_panic: bool,
    /// Whether any backend may get requests, so that at least one model can be served.
    pub is_ready: bool,
}

/// The availability of one backend at the time of [`Readiness`].
#[derive(Debug, Clone)]
pub struct BackendAvailability {
    /// The assessed backend.
    pub backend: Arc<Backend>,
    /// The availability of the backend, without regard to panic mode.
    pub availability: Availability,
    /// Whether the backend may get requests now. True in two special cases: the backend is ejected and panic
    /// mode applies, or the backend is only suspected and no other backend serves one of its models.
    pub is_up: bool,
}

impl PoolSnapshot {
    /// Whether any backend may get requests. If no backend is available and some are ejected, this is true only
    /// with a panic threshold above 0, because panic mode then ignores the ejections.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.backends
            .iter()
            .any(|backend| match backend.availability(now) {
                Availability::Available => true,
                Availability::Ejected => self.panic_threshold > 0.0,
                Availability::Down => backend.is_last_resort(),
                other => self.facets.can_activate(other),
            })
    }

    /// Computes the availability of each backend. Logs the end of panic mode when no backends are
    /// in panic mode any more, and logs a change of the readiness.
    pub(super) fn readiness(&self, now: Instant) -> Readiness {
        let evaluate = |backend: &Arc<Backend>| {
            let availability = backend.availability(now);
            let is_up = availability == Availability::Available;
            BackendAvailability {
                backend: backend.clone(),
                availability,
                is_up,
            }
        };
        let mut backends: Vec<BackendAvailability> = self.backends.iter().map(evaluate).collect();
        let mut is_in_panic = false;
        if backends
            .iter()
            .any(|backend| backend.availability == Availability::Ejected)
        {
            for positions in self.routes.backend_sets() {
                let availabilities = positions
                    .iter()
                    .map(|position| backends[*position].availability);
                let (eligible, ejected) = count_eligible_and_ejected(availabilities);
                if is_panic(eligible, ejected, self.panic_threshold) {
                    is_in_panic = true;
                    for position in &**positions {
                        let backend = &mut backends[*position];
                        backend.is_up |= backend.availability == Availability::Ejected;
                    }
                }
            }
        }
        if !is_in_panic {
            self.panic_log.end(now);
        }
        for positions in self.routes.backend_sets() {
            if !positions.iter().any(|position| backends[*position].is_up) {
                for position in &**positions {
                    let backend = &mut backends[*position];
                    backend.is_up |= backend.backend.is_last_resort();
                }
            }
        }
        let readiness = Readiness {
            backends,
            is_panic: is_in_panic,
            is_ready: self.is_ready(now),
        };
        readiness.log_change(&self.readiness_log, now);
        readiness
    }
}

impl Readiness {
    /// Logs a change of whether a backend is available. Returns the result of [`ReadinessLog::record`].
    fn log_change(&self, log: &ReadinessLog, now: Instant) -> Option<bool> {
        let is_unknown = |it: &BackendAvailability| it.availability == Availability::Unknown;
        let is_known = !self.backends.is_empty() && !self.backends.iter().any(is_unknown);
        log.record(self.is_ready, is_known, || self.summary(), now)
    }

    /// The number of backends with each availability, as text such as `3 backends: 1 asleep, 2
    /// down`.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<Availability, usize> = BTreeMap::new();
        for backend in &self.backends {
            *counts.entry(backend.availability).or_default() += 1;
        }
        let total = self.backends.len();
        let mut summary = match total {
            0 => "no backends".to_owned(),
            1 => "1 backend".to_owned(),
            _ => format!("{total} backends"),
        };
        for (index, (availability, count)) in counts.into_iter().enumerate() {
            let separator = if index == 0 { ':' } else { ',' };
            // Writing to a string cannot fail.
            let _ = write!(summary, "{separator} {count} {}", availability.as_str());
        }
        summary
    }
}

#[cfg(test)]
#[path = "readiness_tests.rs"]
mod tests;
