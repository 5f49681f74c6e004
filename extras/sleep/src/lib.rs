//! Sleep mode of vLLM: an engine without requests gives its GPU memory to another engine of the same GPU.

mod facet;
mod mode;
mod rows;
mod settings;
mod step;

pub use mode::SleepMode;
pub use settings::SleepSettings;
