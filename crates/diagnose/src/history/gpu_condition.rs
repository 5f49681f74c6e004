//! The condition of all GPUs of one backend, for verdicts.

/// The condition of all GPUs of one backend. A field is `None` if no GPU reports the value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuCondition {
    /// Mean utilisation, 0 to 1.
    pub utilization: Option<f64>,
    /// Temperature of the hottest GPU, in degrees Celsius.
    pub max_temperature_celsius: Option<f64>,
    /// Whether a GPU lowers its clock because its cooling or its power supply is faulty. One slow GPU slows
    /// down a whole tensor-parallel backend.
    pub is_throttled: Option<bool>,
}
