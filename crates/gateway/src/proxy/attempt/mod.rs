//! One attempt of a request: its body and headers, its response to the first output, its failure, and the
//! contract of the steps between attempts.

mod attempts;
mod failure;
pub(super) mod first_output;
mod outbound;
mod prepared;
mod send;
mod step;

pub(super) use attempts::Attempts;
pub(super) use failure::{AttemptFailure, FailedAttempt, ForwardResult};
pub(super) use outbound::OutboundRequest;
pub(super) use prepared::PreparedRequest;
pub(super) use send::{OutboundAttempt, send, send_apart, send_via};
pub(super) use step::{AttemptStep, Next, Search};
