//! Limits of rates and of memory.

pub mod memory_charge;
pub mod rate_limiter;
