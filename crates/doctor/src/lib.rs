//! Implements `tokenweir doctor`, which checks backends, the gateway's configuration and the network between
//! them. Each finding comes with its remedy.
//!
//! ```text
//! gather   reads backends, a running gateway and the collector ─► Facts
//! checks   a table of functions that read the facts           ─► Finding
//! report   text for people, JSON for programs
//! ```
//!
//! Only `gather` does I/O. Its requests change nothing on a backend.

pub mod checks;
pub mod configuration;
mod endpoints;
pub mod facts;
pub mod finding;
pub mod gather;
mod interpretation;
pub mod report;
pub mod signal_names;
pub mod text_report;
