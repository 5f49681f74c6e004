//! The load generator. It plans beforehand which requests to send and when, and measures every
//! latency from the intended send time. So a slow server cannot reduce the load that it is measured
//! with (no coordinated omission).
//!
//! All modules except [`sender`] are pure: times and randomness are arguments.

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
