//! Computes settings of vLLM for a model, a GPU and latency targets, and reports each line of the
//! calculation. This crate does no I/O. The report lists the inputs that it cannot know.

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
