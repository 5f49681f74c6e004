//! Sleep mode of vLLM: an engine without requests releases its GPU memory for another engine on the same GPU.

mod facet;
mod mode;
mod rows;
mod settings;
mod step;

pub use mode::SleepMode;
pub use settings::SleepSettings;
