//! What options that write prompts and responses have in common: the queue and the thread that handles them,
//! and the redaction of private data.

mod patterns;
mod queue;
mod redact;
mod redactor;

pub use patterns::RedactionKind;
pub use queue::{PayloadQueue, PayloadQueueGuard};
pub use redactor::{PayloadJob, REDACTION_MARGIN_BYTES, RedactedPayload, RedactionSettings};
