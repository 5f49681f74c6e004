//! Simulates routing policies on a traffic trace in virtual time, to compare them.
//!
//! A simulation uses the load estimators and policies of the gateway and the engines of
//! `tokenweir_sim`. An hour of traffic takes seconds. Equal seeds give equal results.

pub mod engine_groups;
pub mod engine_presets;
pub mod experiment;
pub mod prompt_synthesis;
mod reference_routers;
pub mod results;
pub mod router;
pub mod simulation;
pub mod simulation_setup;
pub mod tournament;
pub mod trace;
pub mod workload;

#[cfg(test)]
mod tests;
