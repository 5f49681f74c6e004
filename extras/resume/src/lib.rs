//! Requests whose clients may lose their connection and return: `streams.resume`.
//!
//! A task of its own (a run, see [`tokenweir_request::runs`]) handles a request with an
//! `Idempotency-Key` and stores its response. The client's connection reads the stored response.
//! When the connection ends, the run continues. The same request on another connection gets the
//! same response from its beginning.

mod option;
mod resumption;
pub mod rows;
mod run;
mod settings;
mod taken;

pub use resumption::Resumption;
pub use settings::ResumeConfig;
