//! Checks of backends, of the gateway's configuration and of the network between them. Each finding
//! has a remedy.
//!
//! ```text
//! gather   reads backends, a running gateway and the collector ─► Facts
//! checks   one table of functions of the facts                ─► Finding: seen, why, change
//! report   text for people, JSON for programs
//! ```
//!
//! Only `gather` does I/O. It changes nothing on a backend.

pub mod checks;
pub mod configuration;
mod endpoints;
pub mod facts;
pub mod finding;
pub mod gather;
mod interpretation;
pub mod report;
pub mod signal_names;
