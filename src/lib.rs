//! tokenweir
pub mod backend;
pub mod clock;
pub mod error;
pub mod gaps;
pub mod headers;
pub mod json;
pub mod observe;
pub mod openai;
pub mod record;
pub mod routing;
pub mod sse;
pub mod trace_context;
