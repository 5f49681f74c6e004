//! Continuation of a response stream at another backend: which streams can be continued, which request
//! continues them, and how the events of the next stream become events of the first.
//!
//! [`ContinuationPlan`] reads the request. [`StreamSplicer`] reads the stream: it gets the bytes of the
//! backends and returns the bytes for the client. Neither does I/O or reads a clock.

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
