//! Computes settings of vLLM for a model, a GPU and latency targets, and reports each line of the
//! calculation. This crate does no I/O. The report lists the inputs that it cannot know.

mod advice;
pub mod lengths;
mod memory;
pub mod model;
pub mod report;
pub mod request;
mod step_bounds;

#[cfg(test)]
mod tests;
