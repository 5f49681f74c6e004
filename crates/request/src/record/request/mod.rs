//! Facts about the request and its client.

mod captured_content;
mod client_identity;
mod head_attributes;
mod request_options;
mod resume;
mod tier;

pub use captured_content::{CapturedPrompt, PayloadConsumers};
pub use client_identity::ClientIdentity;
pub use head_attributes::RequestHeadAttributes;
pub use request_options::{RequestIdentity, RequestOptions};
pub use resume::{ResumeNote, ResumeOutcome};
pub use tier::{Tier, TierResolver};
