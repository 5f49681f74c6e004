//! Which settings of vLLM fit a model, a GPU and what is promised: arithmetic, shown line by line.
//! Nothing here does I/O; what it cannot know it says.

mod advice;
pub mod lengths;
mod memory;
pub mod model;
mod pace;
pub mod report;
pub mod request;

#[cfg(test)]
mod tests;
