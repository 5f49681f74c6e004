//! The fields of a request body, and edits of its bytes.

mod generation_parameters;
mod identity_fields;
pub mod prompt;

pub mod left_out;
pub mod media_urls;
mod request_body_error;
mod splice;

pub mod engine_control;

pub mod request_fields;

pub mod form;
#[cfg(test)]
mod tests;

pub use generation_parameters::GenerationParameters;
pub use identity_fields::IdentityFields;
pub use splice::{ModelSpan, Splice};
