//! The request of a client: its body, the fields and features that are read from it, and the body
//! for a backend.

pub(super) mod body;
pub(super) mod body_memory;
pub(super) mod deadline;
pub(super) mod engine_control;
pub(super) mod features;
pub(super) mod upstream_body;
