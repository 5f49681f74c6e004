//! The parts of a backend that are targets of routing, such as data-parallel ranks. Each part has its own load.
//! Connections, health and circuit breaker belong to the whole backend.

use arc_swap::ArcSwapOption;
use http::{HeaderName, HeaderValue};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_routing::LoadEstimator;

/// The parts of one backend that are targets of routing.
#[derive(Debug, Default)]
pub struct BackendTargets {
    /// Whether `parts` has a value. Routing reads this cheap copy for each candidate.
    are_parts: AtomicFlag,
    /// The parts among which routing chooses. `None`: the whole backend is the target.
    parts: ArcSwapOption<Vec<PartialTarget>>,
}

/// One part of a backend that is a target of routing.
#[derive(Debug)]
pub struct PartialTarget {
    /// The name of the header that selects the part inside the backend.
    pub header: HeaderName,
    /// The value of the header.
    pub header_value: HeaderValue,
    /// The text in a response by which the backend refuses the part.
    pub refusal: &'static [u8],
    /// The load and the speed of the part.
    pub estimator: LoadEstimator,
    /// The number of the part, and its index among the parts.
    pub part: TargetPart,
    /// Hash of the name of the backend and the number of the part.
    pub key: u64,
}

/// A target of routing: a backend, or a part of a backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    /// Estimates the load of the target.
    pub(crate) estimator: &'a LoadEstimator,
    /// Hash of the name of the target.
    pub(crate) key: u64,
    /// The part of the backend. `None`: the whole backend.
    pub(crate) part: Option<TargetPart>,
}

/// One of several parts of a backend that are targets of routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetPart {
    /// The number of the part on the metrics page.
    pub number: u32,
    /// Index of the part, in the order of the numbers.
    pub index: usize,
    /// Number of parts.
    pub count: usize,
}

impl BackendTargets {
    /// The parts. `None`: the whole backend is the target.
    pub fn parts(&self) -> Option<Arc<Vec<PartialTarget>>> {
        if !self.are_parts.get() {
            return None;
        }
        self.parts.load_full()
    }

    /// Makes these parts targets of routing.
    pub fn set(&self, parts: Vec<PartialTarget>) {
        self.parts.store(Some(Arc::new(parts)));
        self.are_parts.set(true);
    }

    /// Makes the whole backend the target.
    pub fn clear(&self) {
        self.are_parts.set(false);
        self.parts.store(None);
    }

    /// Sets the age of a load report at which it has half of its weight in predictions.
    pub(crate) fn set_horizon(&self, horizon: Duration) {
        let Some(parts) = self.parts() else { return };
        for part in parts.iter() {
            part.estimator.set_horizon(horizon);
        }
    }

    /// Calls `visit` for each target: each part, or `whole` if the backend has no parts.
    pub(crate) fn visit(&self, whole: &Target<'_>, mut visit: impl FnMut(&Target<'_>)) {
        let Some(parts) = self.parts() else {
            return visit(whole);
        };
        for part in parts.iter() {
            visit(&Target {
                estimator: &part.estimator,
                key: part.key,
                part: Some(part.part),
            });
        }
    }
}
