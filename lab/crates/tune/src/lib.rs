//! Computes settings of vLLM for a model, a GPU and latency targets. The report contains each line
//! of the calculation, and lists the inputs that are unknown or assumed. This crate does no I/O.

pub mod lengths;
pub mod model;
pub mod report;
pub mod request;

mod memory;
mod step_bounds;

mod advice;

mod calculation;

#[cfg(test)]
mod tests;
