//! Combines the values of all GPUs of one backend, for verdicts and for the causes of slow requests.

use super::gpu_values::GpuValues;
use super::throttle_reason::ThrottleReasons;

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
}

impl GpuCondition {
    /// Combines the values of these GPUs.
    pub fn of<'a>(gpus: impl Iterator<Item = &'a GpuValues>) -> Self {
        let gpus: Vec<&GpuValues> = gpus.collect();
        let used = sum(gpus.iter().map(|gpu| gpu.memory_used_bytes));
        let free = sum(gpus.iter().map(|gpu| gpu.memory_free_bytes));
        let throttles = gpus.iter().filter_map(|gpu| gpu.throttle_reasons);
        let utilization = sum(gpus.iter().map(|gpu| gpu.utilization));
        let reporting = gpus.iter().filter(|gpu| gpu.utilization.is_some()).count();
        Self {
            count: gpus.len(),
            utilization: utilization.map(|total| total / reporting as f64),
            memory_used_bytes: used,
            memory_bytes: used.zip(free).map(|(used, free)| used + free),
            max_temperature_celsius: gpus
                .iter()
                .filter_map(|gpu| gpu.temperature_celsius)
                .max_by(f64::total_cmp),
            is_throttled: throttles.map(ThrottleReasons::has_fault).max(),
        }
    }

    /// Used share of the memory of all GPUs, 0 to 1. `None`: not known.
    pub fn memory_usage(&self) -> Option<f64> {
        let total = self.memory_bytes.filter(|total| *total > 0.0)?;
        Some(self.memory_used_bytes? / total)
    }
}

/// The sum of the known values. `None`: no value is known.
fn sum(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    values.flatten().reduce(|total, value| total + value)
}
