//! Continuation of a response stream at another backend: what can be continued, which request
//! continues it, and how the events of the next stream become events of the first one.
//!
//! [`ContinuationPlan`] reads the request. [`StreamSplicer`] reads the stream: bytes of the backends go
//! in, bytes for the client come out. Neither does I/O or reads a clock.

mod edit;
mod event;
mod layout;
mod note;
mod plan;
mod reasons;
mod request;
mod shown_text;
mod splicer;
#[cfg(test)]
mod tests;

pub use note::{Continuation, Continuations};
pub use plan::ContinuationPlan;
pub use reasons::{ContinuationMode, ContinuationRefusal, InterruptionCause};
pub use splicer::StreamSplicer;
