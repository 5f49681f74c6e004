//! Lets another backend continue the stream of a request after an interruption: whether it can, the memory
//! that this needs, and what continues the stream. What joins the streams is [`tokenweir_request::continuation`].

mod memory;
mod option;
pub mod rows;
mod search;
mod step;

pub use step::{ContinuationSettings, ContinuationStreams};
