//! vLLM's response formats, byte for byte as the Python front end of 0.32 writes them. The formats are
//! templates in the form of the recordings, with `$name` placeholders for variable values. From the number of
//! tokens that an engine has produced, `EventWriter` writes the next event of a stream, without I/O. A client
//! that reads slowly gets several tokens in one event, as from vLLM.

mod simulated_response;
mod template;

pub mod documents;
mod error;
mod wire_format;

mod formats;

mod event_writer;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;

pub use error::VllmError;
pub(crate) use event_writer::{EventWriter, NextEvent};
pub use simulated_response::{GenerationApi, SimulatedResponse};
