//! The optional parts of a backend. This file alone lists them. Each part has a folder with its state and its
//! settings; `drivers` has what a part does in the background.

mod facet;
pub mod sleep;

pub(in crate::backend) use facet::BackendFacet;

use sleep::{SleepControl, SleepFacet, SleepPermits, SleepSettings};
use std::time::Instant;
use tokenweir_routing::resilience::Availability;

/// The state of the optional parts of one backend.
#[derive(Debug, Default)]
pub struct BackendFacets {
    /// Sleep mode of the engine.
    pub sleep: SleepFacet,
}

/// The settings of the optional parts that hold for all backends of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FacetSettings {
    /// Whether the gateway wakes sleeping engines, and puts idle ones to sleep.
    pub sleep: SleepSettings,
}

/// What the optional parts of all backends of a pool share.
#[derive(Debug, Default)]
pub struct PoolFacets {
    pub(in crate::backend) sleep: SleepPermits,
}

/// The state that the optional parts keep in the health checker of one backend.
#[derive(Debug)]
pub(in crate::backend) struct CheckFacets {
    pub(in crate::backend) sleep: SleepControl,
}

impl FacetSettings {
    /// Whether a request can make a backend with this availability available.
    pub(crate) fn can_activate(&self, availability: Availability) -> bool {
        self.sleep.can_activate(availability)
    }
}

/// Evaluates an expression for each part of a backend.
macro_rules! each {
    ($facets:expr, $facet:ident => $call:expr) => {{
        let $facet = &$facets.sleep;
        $call;
    }};
}

impl BackendFacets {
    /// Asks the parts to make the backend available.
    pub(in crate::backend) fn request_activation(&self) {
        each!(self, facet => facet.request_activation());
    }

    /// Whether a part was asked to make the backend available, and has not done it yet.
    pub(in crate::backend) fn is_activation_requested(&self) -> bool {
        let mut is_requested = false;
        each!(self, facet => is_requested |= facet.is_activation_requested());
        is_requested
    }
}

impl CheckFacets {
    /// The state before the first check, at `now`.
    pub(in crate::backend) fn new(now: Instant) -> Self {
        Self { sleep: SleepControl::new(now) }
    }

    /// Forgets what another start of the server can change.
    pub(in crate::backend) fn reset(&mut self) {
        self.sleep.reset();
    }
}
