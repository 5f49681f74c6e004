//! The engines of an experiment: presets of models and GPUs with measured speeds, and groups of equal
//! engines.

pub mod engine_groups;
pub mod engine_presets;
