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

pub use engine_control::{FieldEdit, Permission, Permissions, UsedControl};
pub use generation_parameters::GenerationParameters;
pub use identity_fields::IdentityFields;
pub use media_urls::{has_url_member, visit_media_urls};
pub use prompt::{PromptBytes, PromptSpans, TOKENS_PER_BYTE, TOKENS_PER_MEDIA_BYTE};
pub use request_fields::{RequestBodyError, RequestFields};
pub use splice::{ModelSpan, Splice};
