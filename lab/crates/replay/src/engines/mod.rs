//! The engines of an experiment: models and GPUs with measured costs, and groups of equal engines.

pub mod engine_groups;
pub mod engine_presets;
