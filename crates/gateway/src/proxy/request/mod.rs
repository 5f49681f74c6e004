//! The request of a client: reads its body, derives its fields and features, and determines its deadlines and
//! the body for a backend.

pub(super) mod body;
pub(super) mod body_memory;
pub(super) mod deadline;
pub(super) mod engine_control;
pub(super) mod features;
pub(super) mod forwarded_body;
pub(super) mod identity;
pub(super) mod read_request;
pub(super) mod settings;
pub(super) mod upstream_body;
