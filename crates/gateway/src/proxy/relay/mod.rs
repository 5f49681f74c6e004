//! Sends a request to a backend, and to further backends while attempts fail before their first
//! output.

mod attempt;
mod attempt_failure;
mod continuation;
mod failover;
mod first_output;
mod length;
mod moved_model;
mod prefill_leg;
mod refusals;
mod unread;
mod waiting;

pub(super) use attempt::PreparedRequest;
pub(super) use continuation::StreamContinuation;
pub(super) use failover::{ForwardResult, send};
pub(super) use unread::send as send_unread;
