//! The request of a client: reads its body, derives its fields and features, and determines its deadlines and
//! the body for a backend.

pub(super) mod body;
mod body_memory;
mod deadline;
mod engine_control;
pub(super) mod features;
mod forwarded_body;
mod identity;
mod read_request;
mod settings;
mod upstream_body;

pub use body::{IncomingBody, peek_request, receive_body};
pub use body_memory::{BodyMemory, BodyMemoryPermit, HeldBody, ReceivedBody};
pub(super) use deadline::RequestDeadlines;
pub use deadline::{AttemptDeadlines, ResponseDeadline};
pub(super) use engine_control::EngineControlCheck;
pub(super) use features::{PromptBody, hash_prompt};
pub use features::{TextSample, TextSampling, conversation_hash};
pub(super) use forwarded_body::ForwardedBody;
pub use identity::{IdentityMode, IdentityReader};
pub use read_request::ReadRequest;
pub use settings::RequestSettings;
pub use upstream_body::UpstreamBody;
