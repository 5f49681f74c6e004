//! Combines the values of all GPUs of one backend, for verdicts and for the causes of slow requests.

use crate::page::{GpuValues, ThrottleReasons};
use tokenweir_diagnose::GpuCondition;

/// Combines the values of these GPUs.
pub(crate) fn condition_of<'a>(gpus: impl Iterator<Item = &'a GpuValues>) -> GpuCondition {
    let gpus: Vec<&GpuValues> = gpus.collect();
    let used = sum(gpus.iter().map(|gpu| gpu.memory_used_bytes));
    let free = sum(gpus.iter().map(|gpu| gpu.memory_free_bytes));
    let throttles = gpus.iter().filter_map(|gpu| gpu.throttle_reasons);
    let utilization = sum(gpus.iter().map(|gpu| gpu.utilization));
    let reporting = gpus.iter().filter(|gpu| gpu.utilization.is_some()).count();
    GpuCondition {
        count: gpus.len(),
        utilization: utilization.map(|total| total / reporting as f64),
        memory_used_bytes: used,
        memory_bytes: used.zip(free).map(|(used, free)| used + free),
        max_temperature_celsius: gpus
            .iter()
            .filter_map(|gpu| gpu.temperature_celsius)
            .max_by(f64::total_cmp),
        is_throttled: throttles.map(ThrottleReasons::has_fault).max(),
        last_xid: gpus
            .iter()
            .filter_map(|gpu| gpu.last_xid)
            .max_by(f64::total_cmp),
    }
}

/// The sum of the known values. `None`: no value is known.
fn sum(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    values.flatten().reduce(|total, value| total + value)
}
