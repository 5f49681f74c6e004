//! Facts about the request and its client.

mod client_identity;
mod head_attributes;
mod request_options;
mod short_name;
mod text_consumers;
mod tier;

pub use client_identity::ClientIdentity;
pub use head_attributes::RequestHeadAttributes;
pub use request_options::{RequestIdentity, RequestOptions};
pub use short_name::ShortName;
pub use text_consumers::{TextConsumer, TextConsumers};
pub use tier::{Tier, TierResolver};
