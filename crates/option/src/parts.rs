//! The parts of the gateway that options can bring.

use crate::diagnosis::DiagnosisHooks;
use std::sync::Arc;
use tokenweir_gateway::backend::BackendDrivers;
use tokenweir_gateway::backend::facets::{BackendFacet, PoolFacet};
use tokenweir_gateway::proxy::option::RequestOption;
use tokenweir_gateway::status::StatusSource;
use tokenweir_request::observe::Sink;

/// What options bring, in their order.
#[derive(Default)]
pub struct OptionParts {
    /// What they do on the path of a request.
    pub requests: Vec<Arc<dyn RequestOption>>,
    /// The sinks that get records in batches.
    pub sinks: Vec<Arc<dyn Sink>>,
    /// Functions that create what belongs to one backend.
    pub facets: Vec<FacetSource>,
    /// What all backends of the pool share.
    pub pool_facets: Vec<Arc<dyn PoolFacet>>,
    /// What they do with backends in the background.
    pub drivers: BackendDrivers,
    /// Functions that add their blocks to the status.
    pub status_sources: Vec<StatusSource>,
    /// What they tell the diagnosis, and learn from it.
    pub diagnosis: Vec<Arc<dyn DiagnosisHooks>>,
}

/// A function that creates what belongs to one backend.
type FacetSource = Box<dyn Fn() -> Box<dyn BackendFacet> + Send + Sync>;
