//! The load generator. It plans beforehand which requests to send and when, and measures every
//! latency from the intended send time. So a slow server cannot reduce the load that it is measured
//! with (no coordinated omission).
//!
//! All modules except [`sender`] are pure: times and randomness are arguments.

pub mod comparison;
pub mod gateway_metrics;
pub mod histogram;
mod html_report;
pub mod measurement;
pub mod plan;
mod plot;
pub mod report;
pub mod samples;
pub mod scenario;
pub mod sender;
pub mod statistics;
mod text_report;
