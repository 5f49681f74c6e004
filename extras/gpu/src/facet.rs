//! The knowledge of the gateway about the GPUs of one backend while it routes requests.

use crate::section::CostConfig;
use serde::Serialize;
use std::sync::Mutex;
use tokenweir_gateway::backend::facets::{BackendFacet, BackendTargets};
use tokenweir_gateway::status::{StatusBlock, StatusBlocks};
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::record::BackendCondition;

/// The state of the GPUs of one backend, and their cost.
#[derive(Debug, Default)]
pub struct GpuFacet {
    cost: Mutex<BackendCost>,
    /// Whether a GPU of the backend lowers its clock because of a fault of cooling or of the power supply.
    /// False: no GPU does, or their state is unknown.
    pub(crate) is_throttled: AtomicFlag,
    /// The highest last Xid code of all GPUs. 0: no error. `None`: unknown.
    pub(crate) last_xid: Mutex<Option<f64>>,
}

/// Number and price of the GPUs of a backend, from the configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct BackendCost {
    /// Number of GPUs. `None`: not configured.
    pub gpus: Option<f64>,
    /// Price of all GPUs for one hour. `None`: not configured.
    pub hour_price: Option<f64>,
}

impl StatusBlock for BackendCost {}

impl GpuFacet {
    /// The facet of a backend with these GPUs.
    pub fn new(configured: CostConfig) -> Self {
        let gpus = configured.gpus.map(f64::from);
        let prices = gpus.zip(configured.gpu_hour_price);
        let cost = BackendCost {
            gpus,
            hour_price: prices.map(|(gpus, price)| gpus * price),
        };
        Self {
            cost: Mutex::new(cost),
            ..Self::default()
        }
    }
}

impl BackendFacet for GpuFacet {
    fn adopt_settings(&self, other: &dyn BackendFacet) {
        if let Some(other) = other.downcast::<Self>() {
            let cost = *lock(&other.cost);
            *lock(&self.cost) = cost;
        }
    }

    fn add_status(&self, _: &BackendTargets, blocks: &mut StatusBlocks) {
        blocks.add(*lock(&self.cost));
    }

    fn fact(&self) -> Option<(&'static str, String)> {
        let xid = (*lock(&self.last_xid))?;
        Some(("last Xid error of its GPUs", format!("{xid:.0}")))
    }

    fn complete_condition(&self, condition: &mut BackendCondition) {
        condition.is_gpu_throttled = self.is_throttled.get();
    }
}
