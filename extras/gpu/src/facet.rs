//! What the gateway knows of the GPUs of one backend while it routes requests.

use tokenweir_gateway::backend::facets::BackendFacet;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_request::record::BackendCondition;

/// The GPUs of one backend.
#[derive(Debug, Default)]
pub struct GpuFacet {
    /// Whether a GPU of the backend lowers its clock because of a fault of cooling or of the power
    /// supply. False: no GPU lowers its clock, or the state of the GPUs is not known.
    pub is_throttled: AtomicFlag,
}

impl BackendFacet for GpuFacet {
    fn complete_condition(&self, condition: &mut BackendCondition) {
        condition.is_gpu_throttled = self.is_throttled.get();
    }
}
