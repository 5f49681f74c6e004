//! Sleep mode of vLLM: an engine without requests gives its GPU memory to another engine of the same GPU.

mod facet;
mod mode;
pub mod rows;
mod settings;
mod step;

pub use facet::{SleepCounts, SleepFacet};
pub use mode::SleepMode;
pub use settings::{Section, SleepSettings};
