//! The load generator. The generator plans the requests and their send times before the run, and
//! measures each latency from the intended send time. A slow server therefore cannot reduce the
//! load of its own measurement (no coordinated omission).
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
