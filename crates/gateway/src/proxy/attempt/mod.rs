//! One attempt of a request: its body and headers, its response up to the first output, its failure, and the
//! contract of the steps between attempts.

mod attempts;
mod error_source;
mod failure;
pub(super) mod first_output;
mod outbound;
mod prepared;
mod send;
mod step;

pub(super) use attempts::Attempts;
pub(super) use error_source::error_source;
pub(super) use failure::ForwardResult;
pub use failure::{AttemptFailure, FailedAttempt};
pub use outbound::OutboundRequest;
pub use prepared::PreparedRequest;
pub use send::{OutboundAttempt, send_apart};
pub(super) use send::{send, send_via};
pub use step::AttemptStep;
pub(super) use step::{Next, Search};
