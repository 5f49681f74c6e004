//! The parts that options share which write prompts and responses: the queue with its thread, and the redaction
//! of private data.

mod patterns;
mod queue;
mod redact;
mod redactor;

pub use patterns::RedactionKind;
pub use queue::{PayloadQueue, PayloadQueueGuard};
pub use redactor::{PayloadJob, REDACTION_MARGIN_BYTES, RedactedPayload, RedactionSettings};
