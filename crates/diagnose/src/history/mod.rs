//! The history of one backend: samples, steps between two samples, and measures of windows of steps.

mod sample;
mod statistics;

mod step;

mod window;

mod gpu_condition;
mod known_prompts;
mod measure;

mod backend_history;

pub use backend_history::BackendHistory;
pub use gpu_condition::GpuCondition;
pub(crate) use known_prompts::KnownPrompts;
pub(crate) use measure::{AdverseChange, MIN_COMPARED_STREAMS, WindowMeasure};
pub(crate) use sample::LONG_PROMPT_TOKENS;
pub use sample::{BackendRequestCounts, DiagnosisSample, EVERY, GatewayObservations, SLOW_START};
pub(crate) use statistics::RobustBaseline;
pub(crate) use step::{HistoryStep, StepSignal};
pub use window::{FAST, LONG_WINDOW};
pub(crate) use window::{RECENT, StepWindow};
