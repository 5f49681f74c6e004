//! GPUs of backends: the page of a DCGM exporter, and the assignment of its GPUs to backends.
//!
//! ```text
//! throttle_reason  why a GPU lowers its clock
//! gpu_values       the values of one GPU ─► signals: what a page lacks, and the remedy
//! dcgm_page        a page ─► readings: a GPU with its host and pods
//! gpu_assignment   a reading ─► the backends that own the GPU
//! ```

mod gpu_values;
mod throttle_reason;

mod dcgm_page;
mod gpu_assignment;

pub use dcgm_page::{GpuPage, GpuReading, MAX_GPUS};
pub use gpu_assignment::{GpuBackend, GpuOwners, GpuRule, GpuSourcePlace};
pub use gpu_values::{GPU_SIGNALS, GpuIndex, GpuSignal, GpuValues, THROTTLE_CAUSES};
pub use throttle_reason::{ThrottleReason, ThrottleReasons};
