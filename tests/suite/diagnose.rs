//! Tests of the diagnosis. It must name every simulated pathology within a minute, without other verdicts. A
//! day of busy but healthy backends must cause no verdict.

mod engines;
mod expiry;
mod faults;
mod fleet_model;
mod gpus;
mod healthy_backends;
mod healthy_day;
mod held_out;
mod insufficient_data;
mod precision_recall;
mod program;
mod routed_around;
