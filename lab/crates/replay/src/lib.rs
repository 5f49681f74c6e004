//! Simulates routing policies on a traffic trace in virtual time, to compare them.
//!
//! A simulation uses the load estimators and policies of the gateway and the engines of
//! `tokenweir_sim`. An hour of traffic takes seconds. Equal seeds give equal results.

pub mod cache_view;
mod engines;
pub mod experiment;
mod parallel;
pub mod prompt_synthesis;
pub mod results;
pub mod routers;
pub mod sessions;
pub mod simulation;
pub mod tournament;
pub mod trace;
pub mod workload;

pub use engines::{engine_groups, engine_presets};

#[cfg(test)]
mod burst_tests;
#[cfg(test)]
mod overload_tests;
#[cfg(test)]
mod tests;
