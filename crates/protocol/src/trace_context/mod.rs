//! Trace context: the trace of a request, the ids of the gateway's spans, the head sampling decision, and the
//! context that is injected into upstream requests.
//!
//! The gateway sends the ids of its spans to backends, so it generates them when a request arrives. It creates
//! the spans when the request has ended.

mod list_headers;
mod sampler;
mod trace_parent;

mod b3;

mod context;

mod propagation;

pub use context::TraceContext;
pub use propagation::{Propagation, PropagationFormats, TraceParentMode};
pub use sampler::Sampler;
pub use trace_parent::TraceParent;
