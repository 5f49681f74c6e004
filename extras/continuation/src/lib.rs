//! Lets another backend continue the stream of a request after an interruption. The module decides whether this
//! is possible, limits the memory for it, and finds the other backend. [`tokenweir_request::continuation`]
//! joins the streams.

mod memory;
mod option;
pub mod rows;
mod search;
mod step;

pub use step::{ContinuationSettings, ContinuationStreams};
