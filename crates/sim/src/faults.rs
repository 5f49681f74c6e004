//! Faults of one simulated backend, the last one. The other backends have no faults.

use super::engine::EngineSpec;
use super::positive_number::PositiveNumber;
use std::time::Duration;

/// The faults of the last backend.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Faults of the last backend")]
pub struct SimulatedFaults {
    /// Stop answering after this time, like a stopped process: connections stay open, and no byte
    /// is sent on them.
    #[arg(long, value_name = "DURATION")]
    pub hang_after: Option<humantime::Duration>,
    /// Close the listener and all connections after this time, like a killed process.
    #[arg(long, value_name = "DURATION")]
    pub fail_after: Option<humantime::Duration>,
    /// Take this many times as long for each engine step and each prompt token.
    #[arg(long, value_name = "FACTOR")]
    pub slow_factor: Option<PositiveNumber>,
    /// Begin to be slow after this time, instead of at the start.
    #[arg(long, value_name = "DURATION", requires = "slow_factor")]
    pub slow_after: Option<humantime::Duration>,
    /// Number of KV cache blocks, instead of --blocks.
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u32).range(1..))]
    pub faulty_blocks: Option<u32>,
}

impl SimulatedFaults {
    /// Returns `spec` with the effects of these faults at the time `elapsed` after the start.
    pub(super) fn apply(&self, spec: EngineSpec, elapsed: Duration) -> EngineSpec {
        let is_slow = self.slow_after.is_none_or(|time| elapsed >= *time);
        let factor = match self.slow_factor {
            Some(factor) if is_slow => factor.get(),
            _ => 1.0,
        };
        EngineSpec {
            step_base: spec.step_base.mul_f64(factor),
            prefill_token: spec.prefill_token.mul_f64(factor),
            blocks: self.faulty_blocks.unwrap_or(spec.blocks),
            ..spec
        }
    }
}
