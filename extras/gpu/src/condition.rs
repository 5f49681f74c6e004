//! Combines the values of all GPUs of one backend, for verdicts and for the causes of slow requests.

use crate::page::{GpuValues, ThrottleReasons};
use tokenweir_diagnose::GpuCondition;

pub(crate) fn condition_of(gpus: &[GpuValues]) -> GpuCondition {
    let throttles = gpus.iter().filter_map(|gpu| gpu.throttle_reasons);
    let reporting = gpus.iter().filter(|gpu| gpu.utilization.is_some()).count();
    let utilization = sum(gpus, |gpu| gpu.utilization);
    GpuCondition {
        utilization: utilization.map(|total| total / reporting as f64),
        max_temperature_celsius: max(gpus, |gpu| gpu.temperature_celsius),
        is_throttled: throttles.map(ThrottleReasons::has_fault).max(),
    }
}

/// Used share of the memory of all GPUs, 0 to 1. `None`: not known.
pub(crate) fn memory_usage(gpus: &[GpuValues]) -> Option<f64> {
    let used = sum(gpus, |gpu| gpu.memory_used_bytes)?;
    let total = used + sum(gpus, |gpu| gpu.memory_free_bytes)?;
    (total > 0.0).then(|| used / total)
}

/// The maximum of the known values. `None`: no value is known.
pub(crate) fn max(gpus: &[GpuValues], value: fn(&GpuValues) -> Option<f64>) -> Option<f64> {
    gpus.iter().filter_map(value).max_by(f64::total_cmp)
}

/// The sum of the known values. `None`: no value is known.
fn sum(gpus: &[GpuValues], value: fn(&GpuValues) -> Option<f64>) -> Option<f64> {
    gpus.iter()
        .filter_map(value)
        .reduce(|total, value| total + value)
}
