//! Tests of the diagnosis. It must name every simulated pathology within a minute, without other verdicts. A
//! day of busy but healthy backends must cause no verdict.
//!
//! `SCENARIOS=200 cargo test --release --test suite diagnose -- --nocapture` plays this many scenarios of each
//! fault, which takes minutes.

mod changes;
mod engines;
mod expiry;
mod faults;
mod fleet_model;
mod gpus;
mod healthy_backends;
mod healthy_day;
mod healthy_hours;
mod held_out;
mod insufficient_data;
mod precision_recall;
mod program;
mod routed_around;

/// Number of scenarios of each fault. The environment variable `SCENARIOS` overrides it.
fn scenarios(default: u64) -> u64 {
    std::env::var("SCENARIOS").map_or(default, |count| count.parse().unwrap())
}
