//! Sends a request to a backend, and to further backends while attempts fail before their first
//! output.

mod attempt;
mod failover;
mod first_output;
pub mod retry;

pub(super) use attempt::PreparedRequest;
pub(super) use failover::send;
