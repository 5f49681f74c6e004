//! The condition of all GPUs of one backend, for verdicts.

/// The condition of all GPUs of one backend. `None` in a field: no GPU reports the value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuCondition {
    /// Number of GPUs of the backend.
    pub count: usize,
    /// Mean utilisation, 0 to 1.
    pub utilization: Option<f64>,
    /// Used memory of all GPUs, in bytes.
    pub memory_used_bytes: Option<f64>,
    /// Total memory of all GPUs, used and free, in bytes.
    pub memory_bytes: Option<f64>,
    /// Temperature of the hottest GPU, in degrees Celsius.
    pub max_temperature_celsius: Option<f64>,
    /// Whether a GPU lowers its clock because of a fault of cooling or of the power supply. One slow
    /// GPU slows down a whole tensor-parallel backend.
    pub is_throttled: Option<bool>,
    /// The highest code of the last Xid error of each GPU. 0: there was none.
    pub last_xid: Option<f64>,
}

impl GpuCondition {
    /// Used share of the memory of all GPUs, 0 to 1. `None`: not known.
    pub fn memory_usage(&self) -> Option<f64> {
        let total = self.memory_bytes.filter(|total| *total > 0.0)?;
        Some(self.memory_used_bytes? / total)
    }
}
