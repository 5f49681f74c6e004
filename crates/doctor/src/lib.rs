//! What is wrong with replicas, with the gateway's configuration and with what lies between, and
//! what to change.
//!
//! ```text
//! gather   asks replicas, a running gateway and the collector ─► Facts
//! checks   one table of functions of the facts                ─► Finding: seen, why, change
//! report   for people and for programs
//! ```
//!
//! Only `gather` does I/O, and it does nothing that changes a replica.

pub mod checks;
pub mod configuration;
mod endpoints;
pub mod facts;
pub mod finding;
pub mod gather;
pub mod names;
pub mod report;
mod sight;
