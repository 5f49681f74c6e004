//! The GPUs of a backend: their number, their price, and whether one of them is throttled.

use super::facet::BackendFacet;
use std::sync::Mutex;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::record::BackendCondition;

/// The GPUs of one backend.
#[derive(Debug, Default)]
pub struct GpuFacet {
    /// Whether a GPU of the backend lowers its clock because of a fault of cooling or of the power
    /// supply. False: no GPU lowers its clock, or the state of the GPUs is not known.
    pub is_throttled: AtomicFlag,
    cost: Mutex<GpuCost>,
}

/// The number of GPUs of a backend, and their price.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuCost {
    /// Number of GPUs. `None`: not configured.
    pub gpus: Option<f64>,
    /// Price of all GPUs for one hour. `None`: not configured.
    pub hour_price: Option<f64>,
}

impl GpuFacet {
    /// The number of GPUs, and their price.
    pub fn cost(&self) -> GpuCost {
        *lock(&self.cost)
    }

    /// Sets the number of GPUs, and the price of one GPU for one hour.
    pub fn set_cost(&self, gpus: Option<u32>, gpu_hour_price: Option<f64>) {
        let gpus = gpus.map(f64::from);
        let hour_price = gpus.zip(gpu_hour_price).map(|(gpus, price)| gpus * price);
        *lock(&self.cost) = GpuCost { gpus, hour_price };
    }
}

impl BackendFacet for GpuFacet {
    fn adopt_settings(&self, other: &Self) {
        let cost = other.cost();
        *lock(&self.cost) = cost;
    }

    fn complete_condition(&self, condition: &mut BackendCondition) {
        condition.is_gpu_throttled = self.is_throttled.get();
    }
}
