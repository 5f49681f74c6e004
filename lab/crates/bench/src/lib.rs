//! The load generator. It plans the requests and their send times before the run, and measures each latency
//! from the intended send time. So a slow server cannot reduce the load with which it is measured (no
//! coordinated omission).
//!
//! All modules except [`sender`] do no I/O: times and random numbers are arguments.

pub mod histogram;
pub mod measurement;
pub mod scenario;

pub mod plan;
pub mod samples;
pub mod sender;

pub mod statistics;

pub mod gateway_metrics;

pub mod report;

mod rendering;

pub mod comparison;
