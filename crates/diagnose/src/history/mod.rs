//! The history of one backend: samples, steps between two samples, and measures of windows of steps.

mod gpu_condition;
mod signals;
mod statistics;

mod sample;

mod step;

mod window;

mod known_prompts;
mod measure;

mod backend_history;

pub use backend_history::BackendHistory;
pub use gpu_condition::GpuCondition;
pub(crate) use known_prompts::KnownPrompts;
pub(crate) use measure::{
    AdverseChange, ChangeKind, ChangeWords, MIN_COMPARED_STREAMS, Ratio, WindowMeasure,
};
pub(crate) use sample::LONG_PROMPT_TOKENS;
pub use sample::{DiagnosisSample, EVERY, SLOW_START};
pub(crate) use signals::StepSignal;
pub use signals::{BackendRequestCounts, GatewayObservations};
pub(crate) use statistics::RobustBaseline;
pub(crate) use step::HistoryStep;
pub use window::{FAST, LONG_WINDOW};
pub(crate) use window::{RECENT, StepWindow};
